"""Has some of the partitions take part in a round, or compute at one time for a parameter server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from roundweave.flows.config.base import as_number
from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.plan import Plan

Share = Annotated[float, Field(gt=0, le=1)]


class Cohorts(Plugin):
    """Draws the partitions of each round (client sampling)."""

    decides: ClassVar[bool] = True

    cohort: Annotated[Annotated[int, Field(ge=1, strict=True)] | Share | None, BeforeValidator(as_number)] = Field(
        default=None,
        description="a number (10) or fraction (0.1) of partitions for each round; parameter server: at one time",
    )
    cohort_by_size: bool = Field(
        default=False, description="draw partitions with probabilities proportional to their numbers of examples"
    )
    cohort_from: Literal["all", "present"] = Field(
        default="all", description="partitions to draw from: all (every one), present (with a worker at the site)"
    )

    def fits(self, config: TrainConfig) -> None:
        """Refuse more partitions than there are, and a way to draw where nothing is drawn."""
        if isinstance(self.cohort, int) and self.cohort > config.partitions:
            raise ValueError(f"a cohort of {self.cohort} is more than the {config.partitions} partitions")
        if self.cohort_by_size and self.cohort is None:
            raise ValueError("cohort_by_size needs a cohort; give cohort, too")

    def plan(self, plan: Plan) -> Plan:
        """Fill the sampler, unless all partitions take part whatever happens."""
        from roundweave.flows.plugins.cohort.sampler import Cohort

        count, when, placed = plan.partitions.split.partitions, plan.algorithm.when, plan.placement.stays
        share, present = 1.0 if self.cohort is None else self.cohort, self.cohort_from == "present"
        size = share if isinstance(share, int) else max(1, round(share * count))
        if present and not placed:
            raise UsageError("cohort_from = present needs sites; give sites, too")
        if size >= count and not present:
            return plan
        if not when.together and placed:
            raise UsageError("a server's cohort reads partitions on any worker; leave out sites, or the cohort")
        if not when.together and when.fetch_every > when.push_every:
            raise UsageError(
                f"a partition of a cohort fetches each time that it is drawn, not every {when.fetch_every} "
                f"steps; give fetch_every {when.push_every}, or leave cohort out"
            )
        option = "cohort_from" if self.cohort is None else "cohort"
        return plan.fill(option, sampler=Cohort(size, self.cohort_by_size, present))
