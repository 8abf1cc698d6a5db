"""Accepts a run that has ended, or rejects it; one that is accepted may take an alias of its root."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from roundweave.flows.config.base import Names, checked_by
from roundweave.flows.plugin import Plugin
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import above
from roundweave.storage.rounds.commits import JUDGEMENT
from roundweave.storage.runs.names import alias_history, aliases, holders, is_run, run_address, stored_round
from roundweave.storage.upkeep.keep import Every, Last
from roundweave.tasks.own_code.code import Code, is_reference

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.describing import Described
    from roundweave.flows.planning.plan import Plan
    from roundweave.flows.stored import Run
    from roundweave.storage.runs.run import StoredRun

NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"

CONDITION = re.compile(rf"(\w+) *(>=|<=|>|<) *(?:(-?{NUMBER})|(parent|champion)(?: *([+-]) *({NUMBER}))?)")
"""Matches a condition such as ``accuracy >= 0.9``, ``loss <= parent + 0.01`` or ``loss <= champion``."""


def _check_forms(conditions: tuple[str | Code, ...]) -> None:
    """Raise `ValueError` for a text that is no condition."""
    for condition in conditions:
        if isinstance(condition, str) and not (CONDITION.fullmatch(condition) or is_reference(condition)):
            raise ValueError(
                f"{condition!r} is no condition; give one such as accuracy >= 0.9, loss <= champion or FILE.py:fn"
            )


Conditions = Annotated[Names, checked_by(_check_forms)]
"""Conditions of scores, or functions of the user's, all of which must hold; or a text of them at commas."""


class Gate(Plugin):
    """Accepts or rejects a finished run, and gives an alias such as champion to an accepted run."""

    accept: Conditions | None = Field(
        default=None,
        description="conditions for a finished run, such as 'accuracy >= 0.9, loss <= champion', or FILE.py:fn; "
        "other runs are rejected",
    )
    promote: str | None = Field(
        default=None,
        pattern=r"^\w[\w.\-]*$",
        description="an alias, such as champion, given to an accepted run that is at least as good as the current "
        "holder",
    )
    approval: bool = Field(default=False, description="require a person's approval before a run takes the alias")

    def fits(self, config: TrainConfig) -> None:
        """Refuse what is about an alias where the run may take none."""
        compared = [each for each in self.accept or () if isinstance(each, str) and "champion" in each]
        if not self.promote and (self.approval or compared):
            about = "approval" if self.approval else f"accept = {compared[0]}"
            raise ValueError(f"{about} needs an alias; give promote, such as promote = champion")

    def configure(self, config: TrainConfig) -> TrainConfig:
        """Keep the source of the user's functions, and refuse those that cannot be called."""
        from roundweave.flows.plugins.gate.conditions import check_functions, with_code

        check_functions(self.accept or ())
        if self.promote and is_run(run_address(config.root, self.promote)):
            raise UsageError(f"promote = {self.promote}: there is a run of that name under {config.root}")
        return config.model_copy(update={"accept": self.accept and with_code(self.accept)} | self._start(config))

    def _start(self, config: TrainConfig) -> dict[str, None]:
        """The change of a start that names the alias which this run may take, where nobody ever had the alias."""
        start = stored_round(config.start_from) if isinstance(config.start_from, str) else None
        if start is None or start[0] != self.promote or self.promote in aliases(config.root):
            return {}
        said = f"no run is {self.promote} under {config.root} yet"
        notice(f"{said}; {config.name or 'the run'} begins without start_from")
        return {"start_from": None}

    def plan(self, plan: Plan) -> Plan:
        """Have the conditions' scores checked, and refuse a policy that deletes the round that is handed out."""
        best = plan.config.best
        if self.promote and best and type(plan.keep) in (Every, Last):
            raise UsageError(f"best = {best} names a round that keep = {plan.keep} may delete; give keep = states")
        if not self.accept:
            return plan
        return plan.add(checks=self._check)

    @classmethod
    def shown(cls, run: StoredRun) -> dict[str, str]:
        """The aliases that the run has."""
        every = holders(above(run.address)).items()
        held, alias = [alias for alias, holder in every if holder == run.name], run.config.get("promote")
        awaits = run.config.get("approval") and alias not in held and run.status == "complete"
        return {"alias": ", ".join([*held, *([f"{run.name} awaits approval as {alias}"] if awaits else [])])}

    def awaits(self) -> tuple[str, ...]:
        """Its judgement, where it has conditions."""
        return (JUDGEMENT,) if self.accept else ()

    def _check(self, described: Described) -> None:
        from roundweave.flows.plugins.gate.conditions import check_compared, check_scores

        check_scores(self.accept or (), described.scores, described.description.held_out)
        apart = not (described.partitions.held_out_together or described.work.rotating)
        own = tuple(prefix for scorer in described.work.scorers if scorer.own for prefix in scorer.adds)
        check_compared(self.accept or (), bool(self.promote), bool(described.plan.sampler and apart), own)

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Judge the run, and let it take its alias."""
        if error is not None:
            return
        from roundweave.flows.plugins.gate.judging import Challenger, judge, promote

        entries = alias_history(run.root, self.promote) if self.promote else []
        challenger = Challenger(run, self.accept or (), entries)
        if self.accept:
            judge(challenger)
        if self.promote:
            promote(challenger, self.promote, self.approval)
