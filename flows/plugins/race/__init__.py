"""Chooses the strategy of training that learns the most in the same time, by a race."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from roundweave.flows.plugin import Plugin
from roundweave.tasks.algorithms.table import AUTO

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.storage.runs.run import StoredRun


class Race(Plugin):
    """Chooses the training strategy that learns the most in the same time."""

    planned: dict[str, Any] | None = Field(
        default=None, description="choice of `roundweave plan` and its reason", json_schema_extra={"flags": []}
    )

    @classmethod
    def takes_part(cls, config: TrainConfig) -> bool:
        """Where the algorithm is left to the race."""
        return config.algorithm.name == AUTO

    def fits(self, config: TrainConfig) -> None:
        """Refuse fields whose meaning depends on what the race decides."""
        if getattr(config, "on_complete", None) == "extend":
            raise ValueError("on_complete = extend adds rounds, and auto counts epochs; name an algorithm")

    def rehearse(self, config: TrainConfig) -> TrainConfig:
        """Check the work of which the race is; what is tried is a single partition of it."""
        from roundweave.flows.plugins.race.strategies import workload

        tried: Any = workload(config)[1].plan.config
        return tried  # type: ignore[no-any-return]

    def found(self, config: TrainConfig, run: StoredRun | None) -> TrainConfig:
        """The configuration with the strategy that its run was begun with, or that a race chooses."""
        from roundweave.flows.plugins.race.choosing import chosen

        made: Any = chosen(config, run)
        return made  # type: ignore[no-any-return]

    @classmethod
    def summary(cls, run: StoredRun, known: Mapping[str, Any]) -> dict[str, Any]:
        """The results of the race, and the seconds that rounds have taken since."""
        recorded = run.config.get("planned")
        return {"planned": recorded | {"taken": known["seconds_per_round"]}} if recorded else {}

    @classmethod
    def shown(cls, run: StoredRun) -> dict[str, str]:
        """The strategy that was chosen, and the seconds of its rounds in the race."""
        recorded = run.config.get("planned")
        if not recorded:
            return {}
        from roundweave.flows.plugins.race.results import Planned

        planned = Planned(**recorded)
        raced = planned.raced.get(planned.strategy)
        took = f"; {raced.seconds:.3g} s a round in the race" if raced else ""
        could = f"the best of those that raced where {planned.workers} workers could be used"
        return {"planned": f"{planned.strategy}, {could}{took}"}
