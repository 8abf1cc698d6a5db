"""The end of a training: the run is judged by its gate and, if it is accepted, takes an alias of its root."""

from __future__ import annotations

from typing import Any

import numpy as np

from roundweave.flows.config.recorded import BESIDE
from roundweave.flows.plugins.gate import Conditions
from roundweave.flows.plugins.gate.conditions import COMPARED, parts_of_condition
from roundweave.flows.reporting.listening import notice
from roundweave.flows.stored import Run
from roundweave.storage.errors import CodeError, UsageError, failing_as, located
from roundweave.storage.places.base import Where
from roundweave.storage.rounds.commits import JUDGEMENT, Score
from roundweave.storage.runs.names import Holding, Unless, give_alias, is_run, run_address, unconditionally
from roundweave.storage.runs.round import Round
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.own_code.code import Code


def judge(conditions: Conditions, run: Run) -> None:
    """Judge a run that has ended, and keep the result in its record; a judgement of its last round stays.

    Raises `CodeError` where a function of the user's fails.
    """
    if run.judgement:
        return
    answers = [_judged(condition, run, run.round(0) if run.parent else None) for condition in conditions]
    accepted = all(holds for holds, _ in answers)
    reasons = [reason if holds else f"{reason}, which is not enough" for holds, reason in answers]
    run.write_section(JUDGEMENT, {"accepted": accepted, "reasons": reasons})
    notice(f"{run.name} is {'accepted' if accepted else 'rejected'}: {'; '.join(reasons)}")


def _judged(condition: str | Code, run: Run, parent: Round | None) -> tuple[bool, str]:
    """Whether a condition accepts a run that has ended, and a line that says why.

    The parent is round 0, whose network is that with which the run began, scored on the same examples. Where the
    run began with weights drawn from the seed there is no parent, and a comparison with it accepts.
    """
    if isinstance(condition, Code):
        return _judged_by(condition, run, parent)
    parts = parts_of_condition(condition)
    assert parts is not None
    text, name, compare, number, sign, more = parts
    value = _number(run.round(-1).score, name)
    if (score := run.round(-1).score) and score.left_out and not _data_of(name):
        return False, f"{text}: {value:.6g} of {score.examples} examples, and {score.left_out} are left out"
    if number:
        return COMPARED[compare](value, float(number)), f"{text}: {value:.6g}"
    if parent is None:
        return True, f"{text}: {value:.6g}, and there is no parent"
    bound = _number(parent.score, name)
    limit = bound + float(f"{sign or '+'}{more or 0}")
    return COMPARED[compare](value, limit), f"{text}: {value:.6g}, the parent's is {bound:.6g}"


def _judged_by(function: Code, run: Run, parent: Round | None) -> tuple[bool, str]:
    with failing_as(lambda error: CodeError(f"accept {function.reference} failed with {located(error)}")):
        answer: Any = function.load()(run, parent)
    if not isinstance(answer, bool | np.bool_ | str):
        raise CodeError(
            f"accept {function.reference} must return True, False or why not, not {type(answer).__name__}"
        )
    accepted = not isinstance(answer, str) and bool(answer)
    return accepted, f"{function.reference}: {answer}"


def _data_of(score: str) -> str:
    """The option whose data a score is of, which its name begins with; empty where these are held out."""
    return next((name for name in BESIDE if score.startswith(f"{name}_")), "")


def _number(score: Score | None, name: str) -> float:
    """A score of a round, NaN where it has none, which no condition accepts."""
    return float(score.row().get(name, np.nan)) if score else np.nan


def promote(run: Run, alias: str, conditions: Conditions) -> None:
    """Give a run that ended and was not rejected an alias of its root, and notice it.

    One that had the alias before is left as it is. One that began with a former holder takes the alias from the
    one that followed only if its gate, which compares it on data of their own, accepts it beside that one, too.
    """
    if run.judgement and not run.judgement.accepted:
        return
    parent = (run.parent or "").rpartition("@")[0]
    why = "; ".join(run.judgement.reasons) if run.judgement else "it is complete"
    stays = give(run.root, alias, run, why, lambda entries: _superseded(run, conditions, parent, entries))
    notice(f"{run.name} is {alias} now" if stays is None else f"{run.name} does not become {alias}: {stays}")


def _superseded(run: Run, conditions: Conditions, parent: str, entries: list[Holding]) -> str | None:
    names = [entry.run for entry in entries]
    if run.name in names:
        return "it has been so before"
    if parent not in names or names[-1] == parent:
        return None
    followed = f"it began with {parent}, and {names[-1] or 'nobody'} followed since"
    if not names[-1]:
        return followed
    why = _falls_short(run, conditions, names[-1])
    return f"{followed}, {why}" if why else None


def _falls_short(run: Run, conditions: Conditions, follower: str) -> str:
    """Why a run is not known to be accepted beside the one that follows its parent, empty if it is."""
    compared = [condition for condition in conditions if "parent" in str(condition)]
    named = {_data_of(str(condition)) for condition in compared}
    if not compared or "" in named:
        return "with which nothing compares it"
    other = Run(run_address(run.root, follower), run.root)
    if any(other.attributes["data"].get(name) != run.attributes["data"][name] for name in named):
        return "which was scored on other data"
    answers = [_judged(condition, run, other.round(-1)) for condition in compared]
    return "; ".join(reason for holds, reason in answers if not holds)


def give(root: Where, alias: str, run: StoredRun, why: str, unless: Unless = unconditionally) -> str | None:
    """Give a run an alias as `give_alias` does; raises `UsageError` for the name of a run."""
    if is_run(run_address(root, alias)):
        raise UsageError(f"{alias} is a run under {root}, and no alias; give the alias another name")
    return give_alias(root, alias, run.name, why, run.done, run.chain, unless)
