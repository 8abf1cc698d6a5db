"""Trains small partitions side by side, as one batched network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError

if TYPE_CHECKING:
    from roundweave.flows.planning.plan import Plan


class Stacking(Plugin):
    """Trains several small partitions at once, as one batched network."""

    decides = True

    stacked: int = Field(
        default=1, ge=1, description="number of small partitions to train as one batched network; rounding differs"
    )

    def plan(self, plan: Plan) -> Plan:
        """Fill the slot of the mapper."""
        if not plan.algorithm.when.together:
            raise UsageError("stacked needs rounds in which all partitions begin together; leave it out")
        from roundweave.flows.plugins.stacked.replicas import StackedMapper

        return plan.fill("stacked", mapper=StackedMapper(at_once=self.stacked))
