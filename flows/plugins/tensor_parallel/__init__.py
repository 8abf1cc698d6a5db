"""Has ranks share one network, each with a part of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import at_commas

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.plan import Plan


class TensorParallelism(Plugin):
    """Divides the layers of one network among several processes (tensor parallelism)."""

    decides = True

    ranks: int = Field(
        default=1, ge=1, description="number of processes that share one network (tensor parallelism)"
    )
    units: Annotated[tuple[str, ...], BeforeValidator(at_commas)] = Field(
        default=(), description="layers to divide among the ranks, separated by commas; default: the largest"
    )
    hybrid: bool = Field(default=False, description="divide the batch among ranks before the divided layers")

    def fits(self, config: TrainConfig) -> None:
        """Refuse what says how ranks share where none do."""
        if self.ranks == 1:
            raise UsageError("units and hybrid need ranks: give ranks, 2 or more")

    def plan(self, plan: Plan) -> Plan:
        """Fill the slot of the mapper."""
        if plan.placement.stays:
            stay = f"those of {plan.placement.kind}s stay there"
            raise UsageError(f"ranks that share a network read all examples, and {stay}")
        from roundweave.flows.plugins.tensor_parallel.mapper import TensorParallel

        return plan.fill("ranks", mapper=TensorParallel(ranks=self.ranks, units=self.units, hybrid=self.hybrid))
