"""Tells how far the examples of a run have drifted from those of the run that it begins with, or rejects it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from roundweave.flows.config.base import DATA, NamedOrOwn
from roundweave.flows.plugin import Plugin
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import UsageError, cut, unless_damaged
from roundweave.storage.rounds.columns import ORDER, REFUSED, Column, ColumnDrift, drifted
from roundweave.storage.runs.names import stored_round
from roundweave.storage.runs.run import open_stored

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.plan import Plan
    from roundweave.storage.runs.run import StoredRun
    from roundweave.tasks.data.description import Description


STABLE = ORDER[-1]


class Drift(Plugin):
    """Detects data drift from an earlier run or reference data, and logs the drift or rejects the run."""

    drift: Literal["tell", "refuse"] = Field(
        default="tell",
        description="on data drift from the reference (or the run in start_from): tell (log a message), refuse "
        "(reject the run)",
    )
    reference: Annotated[NamedOrOwn | None, DATA] = Field(
        default=None, description="reference data for drift; default: the validation data if drift = refuse"
    )

    @classmethod
    def takes_part(cls, config: TrainConfig) -> bool:
        """Where a run begins with another one, or is compared with a reference or with validation data."""
        return bool(config.start_from or getattr(config, "validation", None)) or super().takes_part(config)

    def plan(self, plan: Plan) -> Plan:
        """Refuse a comparison of columns of which nothing is told."""
        if (self.drift == "refuse" or self.reference) and plan.placement.told == 0:
            raise UsageError("drift compares columns, which sites do not send; give describe_sites")
        return plan

    def described(self, plan: Plan, description: Description) -> Description:
        """Compare the columns of a new run's examples, and say what became of them.

        They are compared with those of the reference, by which the run may be rejected, and with those of its
        parent, by which it may be rejected where there is no reference. It is also rejected for rows that are
        validation data. Raises `UsageError` if the run is to be rejected by its parent's columns, and the parent
        recorded none.
        """
        record, refuse = description.columns, self.drift == "refuse"
        validation = getattr(plan.config, "validation", None)
        reference = self.reference or (refuse and validation)
        if not record.columns or not (plan.start or reference or validation):
            return description
        found = dict[str, list[ColumnDrift]]()
        if parent := self._parent(plan, refuse and not reference):
            found["drift"] = drifted(parent, record.columns)
        if reference:
            from roundweave.flows.plugins.drift.reference import columns_of_reference

            columns = columns_of_reference(plan, reference, description)
            found["drift from the reference"] = drifted(columns, record.columns)
        drifts = [*found.values()]
        recorded, judged = (drifts[0], drifts[-1]) if drifts else (None, [])
        refusals = [str(each) for each in judged if refuse and each.what in REFUSED]
        if validation:
            from roundweave.flows.plugins.drift.reference import rows_told_of

            lines, fault = rows_told_of(plan, validation, description)
            refusals += lines[:1] if refuse and fault else []
            for line in lines:
                notice(line)
        record = replace(record, drift=recorded, refusals=refusals)
        for name, drift in found.items():
            for line in cut([str(each) for each in drift if each.what != STABLE]):
                notice(f"{name}: {line}")
        return replace(description, columns=record)

    def _parent(self, plan: Plan, needed: bool) -> Mapping[str, Column] | None:
        """The columns of the run that a run begins with; None where it recorded none."""
        if plan.start is None:
            return None
        stored = stored_round(plan.start.reference)
        known = stored and unless_damaged(lambda: open_stored(stored[0]).columns)
        if needed and not known:
            raise UsageError(
                f"drift = refuse: {plan.start.reference} has no record of its columns; give drift = tell"
            )
        return known.columns if known else None

    @classmethod
    def summary(cls, run: StoredRun, known: Mapping[str, Any]) -> dict[str, Any]:
        """What became of each column."""
        record = run.columns
        return {"drift": record and record.drift and [vars(each) for each in record.drift]}

    @classmethod
    def shown(cls, run: StoredRun) -> dict[str, str]:
        """A line for the columns that have moved."""
        return {"drift": "; ".join(cut(record.lines)) if (record := run.columns) else ""}
