"""Has rounds go on without the partitions that have not answered in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError
from roundweave.tasks.executors.base import EXECUTORS

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.plan import Plan

LEAST_SECONDS = 1.0
"""The shortest time that follows from the rounds before."""


class Deadline(Plugin):
    """Continues rounds without partitions that miss a deadline (stragglers)."""

    deadline: Literal["auto"] | Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="seconds after which a round with its quorum continues without stragglers; auto: derived from "
        "earlier rounds",
    )

    def fits(self, config: TrainConfig) -> None:
        """Refuse an executor whose rounds wait for each map."""
        if not EXECUTORS[config.executor].distributed:
            raise ValueError(f"executor {config.executor} waits for each map; leave deadline out, or give graph")

    def plan(self, plan: Plan) -> Plan:
        """Fill the patience of rounds, which a parameter server has not."""
        if plan.schedule:
            raise UsageError("a parameter server does not wait; leave deadline out")
        return plan.fill("deadline", patience=self)

    def seconds(self, took: Sequence[float]) -> float:
        """The seconds that are given, or as many as are usual, after which a round goes on without the rest.

        What is usual is the median of what the last answers `took` and three MADs, the median absolute deviation.
        Before the first answers a round waits for ever.
        """
        if isinstance(self.deadline, float):
            return self.deadline
        if not took:
            return float("inf")
        from statistics import median

        usual = median(took)
        return max(LEAST_SECONDS, usual + 3 * median(abs(seconds - usual) for seconds in took))
