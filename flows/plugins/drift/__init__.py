"""Tells how far the examples of a run have drifted from those of the run that it begins with, or rejects it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from roundweave.flows.plugin import Plugin
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import UsageError, cut, unless_damaged
from roundweave.storage.rounds.columns import REFUSED, drifted
from roundweave.storage.runs.names import stored_round
from roundweave.storage.runs.run import open_stored

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.plan import Plan
    from roundweave.storage.runs.run import StoredRun
    from roundweave.tasks.data.description import Description


class Drift(Plugin):
    """Tells how far examples have drifted from those of the run that a run begins with, or rejects the run."""

    drift: Literal["tell", "refuse"] = Field(
        default="tell",
        description="where the examples have drifted far from those of the run in start_from: tell, or reject it",
    )

    @classmethod
    def takes_part(cls, config: TrainConfig) -> bool:
        """Where a run begins with another one, or may be rejected."""
        return config.start_from is not None or super().takes_part(config)

    def plan(self, plan: Plan) -> Plan:
        """Refuse a comparison of columns of which nothing is told."""
        if self.drift == "refuse" and plan.placement.told == 0:
            raise UsageError("drift = refuse compares columns; have sites tell of them by describe_sites")
        return plan

    def described(self, plan: Plan, description: Description) -> Description:
        """Compare the columns of a new run's examples with those of its parent, and say what became of them.

        Where there is no parent, or it recorded no columns, nothing is compared. Raises `UsageError` for the
        latter if the run is to be rejected for what has drifted.
        """
        start, record = plan.start, description.columns
        if not record.columns or start is None:
            return description
        stored, refuse = stored_round(start.reference), self.drift == "refuse"
        known = stored and unless_damaged(lambda: open_stored(stored[0]).columns)
        if refuse and not known:
            raise UsageError(f"drift = refuse: {start.reference} has no record of its columns; give drift = tell")
        drift = drifted(known.columns, record.columns) if known else None
        refusals = [str(each) for each in drift or () if refuse and each.what in REFUSED]
        record = replace(record, drift=drift, refusals=refusals)
        for line in cut(record.lines):
            notice(f"drift: {line}")
        return replace(description, columns=record)

    @classmethod
    def summary(cls, run: StoredRun, known: Mapping[str, Any]) -> dict[str, Any]:
        """What became of each column."""
        record = run.columns
        return {"drift": record and record.drift and [vars(each) for each in record.drift]}

    @classmethod
    def shown(cls, run: StoredRun) -> dict[str, str]:
        """A line for the columns that have moved."""
        return {"drift": "; ".join(cut(record.lines)) if (record := run.columns) else ""}
