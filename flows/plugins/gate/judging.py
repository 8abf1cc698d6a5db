"""The end of a training: the run is judged by its gate and, if it is accepted, takes an alias of its root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from roundweave.flows.config.plugins import active_plugins, failing_by_name
from roundweave.flows.config.recorded import BESIDE, recorded_config
from roundweave.flows.plugins.gate import Conditions
from roundweave.flows.plugins.gate.comparing import champion_of
from roundweave.flows.plugins.gate.conditions import COMPARED, parts_of_condition
from roundweave.flows.reporting.listening import notice
from roundweave.flows.stored import Run
from roundweave.storage.errors import CodeError, RoundweaveError, UsageError, failing_as, located
from roundweave.storage.places.base import Where
from roundweave.storage.rounds.commits import JUDGEMENT, Score, derived_of, ranking
from roundweave.storage.runs.names import Holding, alias_history, give_alias, is_run, run_address
from roundweave.storage.runs.round import Round
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.networks.scores import SCORES
from roundweave.tasks.own_code.code import Code


@dataclass(frozen=True)
class Challenger:
    """A run that has ended, the conditions of its gate, and the entries so far of the alias that it may take."""

    run: Run
    conditions: Conditions
    entries: Sequence[Holding] = ()

    @cached_property
    def round(self) -> Round:
        """The round that is judged, and handed out if it is accepted."""
        return self.run.result

    @cached_property
    def parent(self) -> Round | None:
        """Round 0, whose network is that with which the run began; None where weights were drawn from the seed."""
        return self.run.round(0) if self.run.parent else None

    @cached_property
    def champion(self) -> Round | None:
        """The round that has the alias, scored on the same examples; None where nobody has it."""
        return champion_of(self.run, self.entries[-1]) if self.entries and self.entries[-1].run else None

    def judge(self, condition: str | Code) -> tuple[bool, str]:
        """Whether a condition accepts the run, and a line that says why.

        Where there is no parent, or no champion, a comparison with it accepts.
        """
        if isinstance(condition, Code):
            return self._ask(condition, self.parent)
        text, name, compare, number, word, sign, more = parts_of_condition(condition) or ()
        value, left_out = self._value(name)
        if left_out:
            return False, f"{text}: {left_out}"
        if number:
            return COMPARED[compare](value, float(number)), f"{text}: {value:.6g}"
        try:
            other = self.parent if word == "parent" else self.champion
        except RoundweaveError as error:
            return False, f"{text}: {value:.6g}, and {self.entries[-1].run} cannot be compared: {error}"
        if other is None:
            return True, f"{text}: {value:.6g}, and there is no {word}"
        bound = _number(other.score, name)
        return COMPARED[compare](
            value, bound + _allowance(sign, more)
        ), f"{text}: {value:.6g}, the {word}'s is {bound:.6g}"

    def beats(self, condition: str | Code, champion: Round) -> tuple[bool, str]:
        """Whether a condition accepts the run beside the champion, and a line that says why.

        A comparison with the parent is one with the champion, and a condition with a number asks for a score that
        is not worse. One that bounds a score on its good side, such as ``loss >= 0.001``, compares nothing.
        """
        if isinstance(condition, Code):
            return self._ask(condition, champion)
        text, name, compare, number, _, sign, more = parts_of_condition(condition) or ()
        value, bound = self._value(name)[0], _number(champion.score, name)
        known = {name, derived_of(name)} & {"loss", *SCORES}
        if number and known and (compare[0] == "<") != ranking(name)[1]:
            return True, text
        holds = COMPARED[f"{compare[0]}=" if number else compare](value, bound + _allowance(sign, more))
        return holds, f"{text}: {value:.6g}, the champion's is {bound:.6g}"

    @property
    def forbidden(self) -> str | None:
        """Why the alias does not go to the run, whatever its scores are; None where it may."""
        if self.entries and self.round.chain == self.entries[-1].chain:
            return "it is already"
        if self.round.chain in [entry.chain for entry in self.entries]:
            return "it has been so before"
        if self.round.number == 0:
            return "no round of it is better than what it began with"
        if not self.entries:
            return None
        holding = self.entries[-1]
        did = f"pinned it to {holding.run or 'nobody'}" if holding.pinned else ""
        if not did and holding.by_hand and holding.since > self._began:
            did = f"gave it to {holding.run} meanwhile"
        return f"{holding.by or 'somebody'} {did} ({holding.why})" if did else None

    @property
    def worse(self) -> str | None:
        """Why the run is not known to be as good as the champion, by the conditions; None if it is.

        Without conditions a run that began with a former champion takes nothing from the one that followed.
        """
        names = [f"{entry.run}@{entry.round}" for entry in self.entries]
        parent = self.run.parent
        if not self.conditions and parent in names[:-1] and parent != names[-1]:
            return f"it began with {parent}, and {names[-1]} followed since, with which nothing compares it"
        try:
            champion = self.champion if self.conditions else None
            answers = [self.beats(condition, champion) for condition in self.conditions if champion]
        except RoundweaveError as error:
            return f"it cannot be compared with {self.entries[-1].run}: {error}"
        reasons = [reason for holds, reason in answers if not holds]
        return f"beside {self.entries[-1].run} it falls short: {'; '.join(reasons)}" if reasons else None

    @property
    def _began(self) -> float:
        """When the run began what it has trained since it last had the alias, in seconds since the epoch."""
        run = self.run
        last = max((entry.round or 0 for entry in self.entries if entry.run == run.name), default=None)
        if last is None or last >= run.done:
            return run.created
        commit = run.round(last + 1).commit
        return (commit.time or run.created) - commit.seconds

    def _value(self, name: str) -> tuple[float, str]:
        """A score of the judged round, and a line if examples are left out of it."""
        score = self.round.score
        value = _number(score, name)
        if score is None or not score.left_out or any(name.startswith(f"{each}_") for each in BESIDE):
            return value, ""
        return value, f"{value:.6g} of {score.examples} examples, and {score.left_out} are left out"

    def _ask(self, function: Code, other: Round | None) -> tuple[bool, str]:
        with failing_as(lambda error: CodeError(f"accept {function.reference} failed with {located(error)}")):
            whole = self.round.number == self.run.done
            run = self.run if whole else Run(self.run.address, self.run.root, self.round.number)
            answer: Any = function.load()(run, other)
        if not isinstance(answer, bool | np.bool_ | str):
            raise CodeError(
                f"accept {function.reference} must return True, False or why not, not {type(answer).__name__}"
            )
        return not isinstance(answer, str) and bool(answer), f"{function.reference}: {answer}"


def _named(condition: str | Code) -> str:
    """A condition in the record; of a function its place, and the digest of its code."""
    return condition if isinstance(condition, str) else f"{condition.reference} ({condition.digest[:12]})"


def _allowance(sign: str | None, more: str | None) -> float:
    """What a condition adds to a score that it compares with; 0 where it adds nothing."""
    return float(f"{sign or '+'}{more or 0}")


def _number(score: Score | None, name: str) -> float:
    """A score of a round, NaN where it has none, which no condition accepts."""
    return float(score.row().get(name, np.nan)) if score else np.nan


def judge(challenger: Challenger) -> None:
    """Judge a run that has ended, and keep the result in its record; a judgement of its last round stays.

    Raises `CodeError` where a function of the user's fails.
    """
    run, conditions = challenger.run, list(map(_named, challenger.conditions))
    if run.judgement and run.judgement.conditions in ([], conditions):
        return
    answers = list(map(challenger.judge, challenger.conditions))
    accepted = all(holds for holds, _ in answers)
    reasons = [reason if holds else f"{reason}, which is not enough" for holds, reason in answers]
    number = challenger.round.number
    run.write_section(
        JUDGEMENT, {"accepted": accepted, "reasons": reasons, "round": number, "conditions": conditions}
    )
    which = f"{run.name}@{number}" if number < run.done else run.name
    notice(f"{which} is {'accepted' if accepted else 'rejected'}: {'; '.join(reasons)}")


def promote(challenger: Challenger, alias: str, approval: bool = False) -> None:
    """Give a run that ended and was not rejected an alias of its root, and notice it.

    The alias is given only if the gate accepts the run beside the network that has it at that moment, and nobody
    pinned it or gave it by hand meanwhile. With `approval` a person gives it.
    """
    run = challenger.run
    if run.judgement and not run.judgement.accepted:
        return

    def stays(entries: Sequence[Holding]) -> str | None:
        now = challenger if [*entries] == [*challenger.entries] else replace(challenger, entries=entries)
        ask = f"it awaits approval: `roundweave alias {alias} {run.name}`" if approval else None
        return now.forbidden or now.worse or ask

    why = "; ".join(run.judgement.reasons) if run.judgement else "it is complete"
    said = give(run.root, alias, run, challenger.round, why, unless=stays, by_hand=False)
    notice(f"{run.name} is {alias} now" if said is None else f"{run.name} does not become {alias}: {said}")
    entries = alias_history(run.root, alias)
    former = entries[-2].run if said is None and len(entries) > 1 else None
    if former and former != run.name and is_run(address := run_address(run.root, former)):
        other = Run(address, run.root, entries[-2].round)
        if other.config.get("export") != run.config.get("export"):  # else it goes there at the run's own end
            tell(other, alias)


def tell(run: Run, alias: str) -> None:
    """Tell the plugins of a run's training that an alias has changed hands; a merge has none."""
    if run.algorithm == "merge":
        return
    for plugin in active_plugins(recorded_config(run, run.root, False, {})):
        with failing_by_name(plugin):
            plugin.promoted(run, alias)


def give(root: Where, alias: str, run: StoredRun, round: Round, why: str, **how: Any) -> str | None:
    """Give a run at a round an alias as `give_alias` does; raises `UsageError` for the name of a run."""
    if is_run(run_address(root, alias)):
        raise UsageError(f"{alias} is a run under {root}, and no alias; give the alias another name")
    return give_alias(root, alias, run.name, why, round.number, round.chain, **how)
