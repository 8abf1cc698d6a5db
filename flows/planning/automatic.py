"""The algorithm `auto`, which takes the strategy that a run was begun with, or has a plan choose one."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from roundweave.flows.config.resolving import Resolved, resolve
from roundweave.flows.config.scheduled import address, as_scheduled, is_pattern
from roundweave.flows.config.train import Planned, TrainConfig
from roundweave.flows.planning.strategies import larger_batch
from roundweave.flows.planning.workload import AUTO, DISTRIBUTING, workload
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import is_run
from roundweave.storage.runs.run import open_stored
from roundweave.tasks.data.partitions import forget_examples

DECIDED = ("executor", "partitions", "threads", "evaluate_every", "quorum", "ranks", "units", "hybrid")
"""Fields of a configuration that a strategy decides for a run, besides the algorithm and the number of rounds."""


def settled(config: TrainConfig) -> Resolved:
    """The resolved configuration of the run to train now; `auto` is replaced by the strategy chosen for it.

    Raises `Skipped` if the configuration says to skip the training.
    """
    forget_examples()  # this process may have trained before on a file that was written anew
    config = as_scheduled(config)
    if config.algorithm.name != AUTO:
        return resolve(config, by_worker=True)
    if is_run(address(config)):
        return resolve(_as_begun(config, open_stored(address(config)).config))
    from roundweave.flows.planning.plan import plan  # slow to import, and only a race needs it

    notice("auto: strategies race")
    made = plan(config)
    notice(f"auto: {made.reason}")
    return resolve(made.planned)


def check(config: TrainConfig) -> None:
    """Raise an error for mistakes in a configuration, its code, its data or its network before it is trained.

    Data that each partition loads by itself are not read.
    """
    if is_pattern(config.start_from):
        config = config.model_copy(update={"start_from": None})
    if config.algorithm.name == AUTO:
        workload(config)
    else:
        resolve(config)


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
