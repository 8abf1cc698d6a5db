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
    """Has ranks share one network, each with a part of its layers."""

    decides = True

    ranks: int = Field(
        default=1, ge=1, description="processes that share one network, each with a part of its layers"
    )
    units: Annotated[tuple[str, ...], BeforeValidator(at_commas)] = Field(
        default=(), description="layers whose units ranks share, at commas; default: those that hold the most"
    )
    hybrid: bool = Field(default=False, description="whether ranks share the batch before these layers")

    def fits(self, config: TrainConfig) -> None:
        """Refuse what says how ranks share where none do."""
        if self.ranks == 1:
            raise UsageError("units and hybrid say what ranks share: give ranks, 2 or more")

    def plan(self, plan: Plan) -> Plan:
        """Fill the slot of the mapper."""
        if plan.placement.stays:
            stay = f"those of {plan.placement.kind}s stay there"
            raise UsageError(f"ranks that share a network read all examples, and {stay}")
        from roundweave.flows.plugins.tensor_parallel.mapper import TensorParallel

        return plan.fill("ranks", mapper=TensorParallel(ranks=self.ranks, units=self.units, hybrid=self.hybrid))
