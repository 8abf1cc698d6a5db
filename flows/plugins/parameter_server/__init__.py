"""Parameter servers: partitions push updates when they are ready, and do not wait for one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from roundweave.flows.config.base import Numbers
from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import RECORDED

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.plan import Plan


class ParameterServer(Plugin):
    """Runs asynchronous algorithms, whose updates arrive one by one at a parameter server."""

    decides: ClassVar[bool] = True
    beside: ClassVar[tuple[str, ...]] = ("order", "speeds")

    order: str | None = Field(
        default=None,
        pattern=f"^(seeded|{RECORDED}.+)$",
        description="the order of arrivals at a parameter server, with executor inline: seeded or recorded:RUN",
    )
    speeds: Numbers | None = Field(
        default=None, description="relative speed of each partition in a seeded order, such as 1,1,0.1"
    )

    @classmethod
    def takes_part(cls, config: TrainConfig) -> bool:
        """Always: whether there is a server is known once the algorithm is built."""
        return True

    def plan(self, plan: Plan) -> Plan:
        """Fill in the schedule, and defaults that depend on it, where the algorithm has a server."""
        if not plan.algorithm.when.together:
            from roundweave.flows.plugins.parameter_server.fitting import fit

            return fit(plan, self)
        if self.order or self.speeds:
            raise UsageError("order and speeds need the algorithm of a parameter server, as async_sgd")
        return plan
