"""Conditions by which a run is accepted or rejected after its last round."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable

from roundweave.flows.config.recorded import BESIDE
from roundweave.flows.plugins.gate import CONDITION
from roundweave.storage.errors import UsageError, nearest
from roundweave.tasks.own_code.code import Code, find_code

COMPARED = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def with_code(conditions: tuple[str | Code, ...]) -> tuple[str | Code, ...]:
    """The conditions with the source of the user's functions; raises `CodeError`."""
    return tuple(each if parts_of_condition(each) else find_code(each) for each in conditions)


def check_functions(conditions: Iterable[str | Code]) -> None:
    """Raise `UsageError` for a function of the user's that cannot be called as a gate calls it; loads its code."""
    for condition in conditions:
        if parts_of_condition(condition):
            continue
        code = find_code(condition)
        try:
            inspect.signature(code.load()).bind("run", "parent")
        except TypeError as error:
            raise UsageError(f"accept {code.reference} must be a function of (run, parent): {error}") from error


def check_scores(conditions: Iterable[str | Code], scores: Iterable[str], held_out: int) -> None:
    """Raise `UsageError` for a condition of a score that a run of these scores will not have."""
    for parts in filter(None, map(parts_of_condition, conditions)):
        if not held_out:
            raise UsageError(f"accept = {parts[0]} needs scores, and no examples are held out; give held_out")
        if parts[1] not in (names := [*scores]):
            hint = nearest(parts[1], names, f"there are {', '.join(names)}")
            raise UsageError(f"accept: {parts[1]!r} is not scored; {hint}")


def check_compared(conditions: Iterable[str | Code], promote: bool, alone: bool, own: tuple[str, ...]) -> None:
    """Raise `UsageError` for a comparison by a score that another run's round does not have.

    With `promote` each condition is one, as the run is compared with who has the alias. Scores that begin as in
    `own` are of partitions' own networks; where each round is scored `alone`, on what its cohort holds out, there
    are those of other data.
    """
    for text, name, _, number, *_ in filter(None, map(parts_of_condition, conditions)):
        if number and not promote:
            continue
        if name.startswith(own or ("=",)):
            raise UsageError(
                f"accept = {text} compares rounds by {name}, which only a run's own rounds have; compare the loss"
            )
        if alone and not any(name.startswith(f"{each}_") for each in BESIDE):
            raise UsageError(
                f"accept = {text} compares rounds, and each is scored on what those that it asks hold out; give "
                "validation data and a condition of validation_ scores, or no cohort"
            )


def parts_of_condition(condition: str | Code) -> tuple[str, ...] | None:
    """The text, and the groups, of a condition of scores; None for a function of the user's."""
    match = None if isinstance(condition, Code) else CONDITION.fullmatch(condition)
    return match and (match[0], *match.groups())
