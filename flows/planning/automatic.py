"""The algorithm `auto`, which takes the strategy that a run was begun with, or has a plan choose one."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from roundweave.flows.config.train import Planned, TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.planning.strategies import larger_batch
from roundweave.flows.planning.workload import DISTRIBUTING
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.run import StoredRun

DECIDED = ("executor", "partitions", "threads", "evaluate_every", "quorum", "ranks", "units", "hybrid")
"""Fields of a configuration that a strategy decides for a run, besides the algorithm and the number of rounds."""


def chosen(config: TrainConfig, run: StoredRun | None) -> TrainConfig:
    """The configuration with the strategy that its run was begun with, or that a race chooses for a new run."""
    if run is not None:
        return _as_begun(config, run.config)
    notice("auto: strategies race")
    made = plan(config)
    notice(f"auto: {made.reason}")
    return made.planned


def _as_begun(config: TrainConfig, recorded: Mapping[str, Any]) -> TrainConfig:
    """The configuration with the strategy that the run was begun with, and as many epochs as it asks for now."""
    if not recorded.get("planned"):
        raise UsageError(f"{config.name} was not begun by auto; name its algorithm, or give another name")
    begun = {name: recorded[name] for name in (*DECIDED, "planned")}
    given = config.algorithm.model_dump(exclude={"name", *DISTRIBUTING}, exclude_unset=True)
    batch, own = recorded["algorithm"]["batch_size"], config.algorithm.options["batch_size"]
    if batch > own:
        given |= larger_batch(batch, own, config.algorithm.options["lr"])
    rounds = ceil(config.rounds * Planned(**recorded["planned"]).rounds_of_epoch)
    kept = config.model_dump(exclude={"planned"}, exclude_unset=True)
    return TrainConfig(**kept | begun | {"algorithm": recorded["algorithm"] | given, "rounds": rounds})
