"""Has the partitions of a site read, mapped and scored by its own workers alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from roundweave.flows.config.base import as_number
from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import at_commas

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.config.experiment import Dealing
    from roundweave.flows.planning.describing import Described
    from roundweave.flows.planning.plan import Plan
    from roundweave.tasks.data.partitions import Partitions
    from roundweave.tasks.data.sources.table import Each

LEAST_TOLD = 10
"""A site tells no count of fewer values."""


def read_sites(given: Any) -> Any:
    """The number of partitions of each site, of a text such as ``berlin,paris:3``; any other value unchanged."""
    if not isinstance(given, str):
        return given
    parts = [name.partition(":") for name in at_commas(given)]
    sites = {name: as_number(count) if count else 1 for name, _, count in parts}
    if len(sites) < len(parts):
        raise ValueError(f"{given!r} names a site twice; give how many partitions it has, as berlin:2")
    return sites


class Sites(Plugin):
    """Leaves data at their sites: only the workers of a site read, train and score the site's partitions."""

    decides: ClassVar[bool] = True
    beside: ClassVar[tuple[str, ...]] = ("describe_sites",)

    sites: Annotated[str | dict[str, Annotated[int, Field(ge=1)]], BeforeValidator(read_sites)] | None = Field(
        default=None,
        description="sites and numbers of partitions, such as berlin,paris:3; only a site's workers read its data",
    )
    describe_sites: bool = Field(
        default=False,
        description="let sites report counts (10 or more) of column values, and held-out outputs for scores that "
        "need them",
    )

    @classmethod
    def takes_part(cls, config: TrainConfig) -> bool:
        """Where partitions have sites."""
        return bool(config.sites)

    @classmethod
    def imply(cls, given: dict[str, Any]) -> dict[str, Any]:
        """As many partitions as the sites have, where their number is not given."""
        sites = read_sites(given.get("sites"))
        counts = [*sites.values()] if isinstance(sites, dict) else []
        known = counts and all(isinstance(count, int) for count in counts)
        return {"partitions": sum(counts), **given} if known else given

    @property
    def of_each(self) -> tuple[str, ...]:
        """The site of each partition."""
        assert isinstance(self.sites, dict)
        return tuple(site for site, count in self.sites.items() for _ in range(count))

    def fits(self, config: TrainConfig) -> None:
        """Refuse another number of partitions."""
        if (count := len(self.of_each)) != config.partitions:
            raise ValueError(f"the sites have {count} partitions, not {config.partitions}")

    def deal(self, partitions: Partitions, config: Dealing) -> Partitions:
        """Have each partition stay at its site."""
        from roundweave.tasks.data.splits.placement import Placement

        source = partitions.source
        if not source.partitioned:
            source = self._file_of_each(source, config.data)
        return replace(partitions, source=source, placement=Placement("site", self.of_each, told=0))

    def plan(self, plan: Plan) -> Plan:
        """Have sites tell what they were asked for; of a stored run that was decided when it began."""
        tells = plan.run.config.get("describe_sites") if plan.run else self.describe_sites
        placement = replace(plan.partitions.placement, told=LEAST_TOLD if tells else 0)
        return plan.fill("sites", placement=placement).add(checks=check_stays)

    def _file_of_each(self, source: Any, data: Any) -> Each:
        """The source of the file that has one name at all sites: the partition of a site is the file there.

        Raises `UsageError` for data that are the same everywhere, and for several partitions of one site.
        """
        from roundweave.tasks.data.sources.table import Each

        names, own = self.of_each, "FILE.py:function of (partition, partitions)"
        if not isinstance(data, str) or ":" not in data:
            advice = f"name a file of each site's own, such as npz:FILE, or give {own}"
            raise UsageError(f"data {data} is the same at every site; {advice}")
        for site in names:
            if (count := names.count(site)) > 1:
                raise UsageError(f"{data} is one partition of site {site}, not {count}; for more, give {own}")
        return Each((source,) * len(names), names)


def check_stays(described: Described) -> None:
    """Raise `UsageError` for a score that needs all outputs at once of sites that are not asked to send them."""
    from roundweave.tasks.rounds.scoring import gathering

    asked = described.plan.placement.told or not described.description.held_out
    if not asked and (whole := gathering(described.objective)):
        raise UsageError(f"{whole[0]} needs held-out outputs and targets; give describe_sites to send them")
