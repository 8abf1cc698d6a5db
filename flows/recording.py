"""Create the store of a new run, with its attributes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from roundweave.flows.config.train import TrainConfig
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.state import State, Update
from roundweave.tasks.algorithms.applies.memory import kept_memory
from roundweave.tasks.data.description import Description
from roundweave.tasks.numerics.fingerprints import versions
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.persistence.committing import score_initial


def create_run(
    address: str,
    config: TrainConfig,
    work: Work,
    description: Description,
    initial: State,
    carried: Mapping[int, Update] = MappingProxyType({}),
    processes: int = 1,
    gather: Callable[..., list[Any]] = lambda function, numbers: list(map(function, numbers)),
    **attributes: Any,
) -> RoundStore:
    """Create a run at an address and commit its initial state, and the score of that, as round 0.

    Of the memory of `initial`, the vectors of the outer optimizer, only the slots that the run's apply keeps are
    taken. `carried` has the updates with which partitions bring a carry from another run (see
    `RoundStore.create`), and `processes` is how many will map. `gather` calls a function with numbers where the
    held-out examples lie. `attributes` are recorded besides those of every run, such as ``parent``. Raises
    `ExperimentDiffers` where something lies at the address already, and `RoundFailed` where scoring fails.
    """
    algorithm, model = work.algorithm, work.objective.model
    initial = replace(initial, memory=kept_memory(algorithm.apply, initial), round=0)
    recorded = {
        "config": config.model_dump(mode="json", exclude={"root", "address"}),
        "algorithm": repr(algorithm),
        "data": asdict(description),
        "network": {"inputs": model.inputs, "outputs": model.outputs},
        "fingerprint": work.fingerprint,
        **provenance(),
        **attributes,
    }
    schema = schema_of(work, initial.memory, processes)
    scored = score_initial(work, initial, gather) if description.held_out else None
    return RoundStore.create(address, schema, config.rounds, recorded, initial, config.fsync, carried, scored)


def schema_of(work: Work, memory: Iterable[str], processes: int = 1) -> Schema:
    """What a run of some work stores; `memory` are the slots of its apply.

    Updates of neighbouring partitions share files, of which there are enough for so many `processes` that map. If
    each update is written alone, as by a parameter server or by ranks that share a network, none share a file.
    """
    algorithm = work.algorithm
    schema = Schema(
        layout=work.objective.layout,
        partitions=work.partitions.split.partitions,
        memory=tuple(memory),
        carry=algorithm.map.carry,
        extras=algorithm.map.extras,
        matches=algorithm.reduce.matches,
    )
    alone = algorithm.when.asynchronous or work.compute.ranks > 1
    return schema if alone else schema.sharded(processes)


def provenance() -> dict[str, Any]:
    """The versions of the installed software, and the time now in seconds since the epoch, as attributes."""
    return {"versions": versions(), "created": time.time()}
