"""From a configuration to a job: describe the examples, build the network, create or reopen the run's store."""

from __future__ import annotations

import json
import platform
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from math import prod
from pathlib import Path

from flows.config.resolving import differences, find_algorithm, find_loss, find_source, short_name, with_own_code
from flows.config.train import TrainConfig
from storage.errors import ExperimentDiffers, RoundweaveError
from storage.rounds.lease import hold_lease
from storage.rounds.schema import Schema
from storage.rounds.store import RoundStore
from tasks.algebra import Algorithm
from tasks.data.partitions import Description, Partitions, combine
from tasks.data.splits import Split
from tasks.executors.base import Executor
from tasks.networks.objective import ModelSpec, Objective, check_fit
from tasks.numerics import Fingerprint, check_fingerprint
from tasks.rounds.plan import RoundPlan
from tasks.rounds.steps import Job

PACKAGES = ("roundweave", "torch", "numpy", "zarr", "dask", "prefect")


@dataclass(frozen=True)
class Prepared:
    """A run ready for its next round; `done` is the last committed one."""

    job: Job
    store: RoundStore
    done: int

    @property
    def name(self) -> str:
        """The run's name."""
        return self.store.path.stem


@contextmanager
def prepared(config: TrainConfig, executor: Executor) -> Iterator[Prepared]:
    """Hold the run of this configuration for writing, new or as far as it came; a failure is recorded in it."""
    config = checked(config)
    algorithm = find_algorithm(config)
    partitions = _partitions(config)
    descriptions = _describe(partitions, executor)
    description = combine(descriptions)
    partitions = replace(partitions, digests=tuple(part.digest for part in descriptions))
    objective = describe_objective(config, description)
    algorithm = algorithm.bound(objective, partitions)
    if partitions.source.partitioned:
        executor.gather(partial(check_fit, objective, partitions, description.classes), range(1))
    fingerprint = _common_fingerprint(executor, config)
    store = _open_or_create(config, objective, algorithm, description, fingerprint)
    token = secrets.token_hex(4)
    with hold_lease(store.log.folder, token) as lease, _failure_recorded(store):
        store, done = _recovered(store, config.rounds, partitions)
        job = Job(
            store=str(store.path.resolve()),
            token=token,
            epoch=lease.epoch,
            objective=objective,
            algorithm=algorithm,
            partitions=partitions,
            plan=RoundPlan(config.partitions, 1, config.seed),
            rounds=config.rounds,
            fingerprint=fingerprint,
            threads=config.threads,
            quorum=config.quorum,
            evaluate_every=config.evaluate_every,
            target_accuracy=config.target_accuracy,
            patience=config.patience,
            fsync=config.fsync,
        )
        yield Prepared(job, store, done)


def _recovered(store: RoundStore, rounds: int, partitions: Partitions) -> tuple[RoundStore, int]:
    """The store with room for its rounds and splits, and the last round that is whole."""
    store = store.extend(rounds)
    done, _ = store.recover()
    if not partitions.source.partitioned:
        for number in range(partitions.split.number(rounds) + 1):
            store.write_split(number, partitions.assignment)
    return store, done


def checked(config: TrainConfig) -> TrainConfig:
    """The configuration with the user's functions kept; raises what can be known before anything is started."""
    config = with_own_code(config)
    find_algorithm(config)
    partitions = _partitions(config)
    if not partitions.source.partitioned:
        description = partitions.describe(0)
        partitions.split.check(description.examples)
        check_fit(describe_objective(config, description), partitions, description.classes, 0)
    return config


def versions() -> dict[str, str]:
    """What the record of a run tells of the software that made it."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def run_path(root: Path, name: str) -> Path:
    """Where a run of this name lies."""
    return root / f"{name}.zarr"


def default_name(config: TrainConfig) -> str:
    """``<algorithm>-<model>-<date>-<4 hex>``, which no other run has."""
    parts = short_name(config.algorithm), short_name(config.model), time.strftime("%Y%m%d"), secrets.token_hex(2)
    return "-".join(parts)


def _partitions(config: TrainConfig) -> Partitions:
    split = Split(config.partitions, config.split, config.seed, config.resplit_every)
    return Partitions(find_source(config.data), split, config.dtype, config.held_out)


def _describe(partitions: Partitions, executor: Executor) -> list[Description]:
    if not partitions.source.partitioned:
        return [partitions.describe(0)]
    return executor.gather(partitions.describe, range(partitions.split.partitions))


def describe_objective(config: TrainConfig, description: Description) -> Objective:
    """The network and loss for examples of this description."""
    loss = find_loss(config, description.labels)
    outputs = description.classes if description.labels and loss != "mse" else prod(description.targets)
    options = json.dumps(config.model_options, sort_keys=True)
    model = ModelSpec(config.model, description.inputs, outputs, config.dtype, config.seed, options)
    return Objective(model, loss)


def _common_fingerprint(executor: Executor, config: TrainConfig) -> Fingerprint | None:
    """What all processes may do to the bits; None where they may differ."""
    if config.mixed_hardware:
        return None
    found = executor.fingerprints()
    first = next(iter(found.values()))
    for place, other in found.items():
        check_fingerprint(first, other, place)
    return first


def _open_or_create(
    config: TrainConfig,
    objective: Objective,
    algorithm: Algorithm,
    description: Description,
    fingerprint: Fingerprint | None,
) -> RoundStore:
    path = run_path(config.root, config.name or default_name(config))
    if not path.exists():
        initial = objective.initial()
        initial = replace(initial, memory=algorithm.apply.init(initial.params))
        schema = Schema(
            layout=objective.layout,
            partitions=config.partitions,
            memory=tuple(initial.memory),
            carry=algorithm.map.carry,
            extras=algorithm.map.extras,
            matches=algorithm.reduce.matches,
        )
        attributes = {
            "config": config.model_dump(mode="json", exclude={"root"}),
            "algorithm": repr(algorithm),
            "data": asdict(description),
            "fingerprint": fingerprint,
            "parent": None,
            "versions": versions(),
            "created": time.time(),
        }
        return RoundStore.create(path, schema, config.rounds, attributes, initial)
    store = RoundStore(path, config.fsync)
    _check_same_experiment(store, config, description)
    if fingerprint and store.attributes["fingerprint"]:
        check_fingerprint(store.attributes["fingerprint"], fingerprint, "this machine")
    return store


def _check_same_experiment(store: RoundStore, config: TrainConfig, description: Description) -> None:
    differing = differences(store.attributes["config"], config.experiment)
    if store.attributes["data"]["digest"] != description.digest:
        differing.append("data: other examples")
    if differing:
        raise ExperimentDiffers(
            f"{store.path.stem} is another experiment ({'; '.join(differing)}); give this one another --name"
        )


@contextmanager
def _failure_recorded(store: RoundStore) -> Iterator[None]:
    """Keep the reason why a run failed beside its commits, until it goes on."""
    store.log.failure = None
    try:
        yield
    except RoundweaveError as error:
        store.log.failure = str(error)
        raise
