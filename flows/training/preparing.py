"""From a resolved configuration to a job: describe the examples where they are, hold and recover the store."""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from flows.config.recorded import differences
from flows.config.resolving import Resolved, objective_for, short_name
from flows.config.train import TrainConfig
from storage.errors import ExperimentDiffers
from storage.hierarchy.schema import Schema
from storage.places.addresses import full_address
from storage.rounds.commits import Commit
from storage.rounds.lease import hold_lease
from storage.rounds.recovery import recover
from storage.rounds.store import RoundStore
from storage.runs.names import is_run, new_name, run_address, run_name
from storage.upkeep.keeping import Keep
from storage.upkeep.pruning import prune
from tasks.data.partitions import Description, Partitions, combine
from tasks.executors.base import Executor
from tasks.networks.fit import check_fit
from tasks.networks.start import Start
from tasks.numerics import Fingerprint, check_fingerprint
from tasks.rounds.job import Attempt, Job, Work
from tasks.rounds.plan import RoundPlan

PACKAGES = ("roundweave", "torch", "numpy", "zarr", "dask", "prefect")


@dataclass(frozen=True)
class Prepared:
    """A run ready for its next round; `done` is the last committed one."""

    job: Job
    store: RoundStore
    done: int
    keep: Keep

    @property
    def name(self) -> str:
        """The run's name."""
        return run_name(self.store.address)

    def let_go(self, newest: Commit) -> None:
        """Let go of what is not to be kept, between windows: within one, lost work begins again from its first."""
        prune(self.store, self.keep, newest)


@contextmanager
def prepared(resolved: Resolved, executor: Executor) -> Iterator[Prepared]:
    """Hold the run of a configuration for writing, new or as far as it came; a failure is recorded in it."""
    work, description = _work(resolved, executor)
    store = _open_or_create(resolved.config, work, description)
    token = secrets.token_hex(4)
    with hold_lease(store.place, token) as lease:
        store, done = _recovered(store, resolved.config.rounds, work.partitions)
        attempt = _attempt(resolved.config, store, token, lease.epoch)
        job = Job(work, attempt, RoundPlan(resolved.config.partitions))
        run = Prepared(job, store, done, Keep.of(resolved.config.keep))
        run.let_go(store.log.read(done))
        yield run


def _work(resolved: Resolved, executor: Executor) -> tuple[Work, Description]:
    """What the rounds compute, and the examples that they compute it on."""
    if resolved.objective is None:
        resolved = _described(resolved, executor)
    config, objective, description = resolved.config, resolved.objective, resolved.description
    assert objective is not None
    assert description is not None
    fingerprint = None if config.mixed_hardware else _common_fingerprint(executor)
    decided = (config.seed, config.threads, config.quorum, fingerprint, config.algorithm.code)
    return Work(objective, resolved.algorithm, resolved.partitions, *decided), description


def _described(resolved: Resolved, executor: Executor) -> Resolved:
    """What could be resolved only where the partitions are."""
    partitions = resolved.partitions
    descriptions = executor.gather(partitions.describe, range(partitions.split.partitions))
    description = combine(descriptions)
    digests = tuple(part.digest for part in descriptions)
    partitions = replace(partitions, digests=digests, shared=bool(description.shared))
    wanted = objective_for(resolved.config, description)
    (objective,) = executor.gather(partial(check_fit, wanted, partitions, description), range(1))
    algorithm = resolved.algorithm.bound(objective, partitions)
    return Resolved(resolved.config, algorithm, partitions, description, objective)


def _common_fingerprint(executor: Executor) -> Fingerprint:
    """What all processes may do to the bits; raises `NumericsMismatch` where they differ."""
    fingerprints = executor.fingerprints()
    first = next(iter(fingerprints.values()))
    for place, other in fingerprints.items():
        check_fingerprint(first, other, place)
    return first


def _attempt(config: TrainConfig, store: RoundStore, token: str, epoch: int) -> Attempt:
    fields = ("rounds", "evaluate_every", "target_accuracy", "patience", "fsync")
    return Attempt(full_address(store.address), token, epoch, **{name: getattr(config, name) for name in fields})


def _open_or_create(config: TrainConfig, work: Work, description: Description) -> RoundStore:
    address = config.address or run_address(config.root, config.name or new_name(config.root, *_called(config)))
    if config.address is None and not is_run(address):
        # Another process may be making the same run at this moment: then it is there now.
        with suppress(ExperimentDiffers):
            return _create(config, address, work, description)
    store = RoundStore(address, config.fsync)
    _check_same_experiment(store, config, description)
    if work.fingerprint and store.attributes["fingerprint"]:
        check_fingerprint(store.attributes["fingerprint"], work.fingerprint, "this machine")
    return store


def _create(config: TrainConfig, address: str, work: Work, description: Description) -> RoundStore:
    algorithm = work.algorithm
    start = config.start_from
    initial = start.state(work.objective) if isinstance(start, Start) else work.objective.initial()
    initial = replace(initial, memory=algorithm.apply.init(initial.params))
    schema = Schema(
        layout=work.objective.layout,
        partitions=config.partitions,
        memory=tuple(initial.memory),
        carry=algorithm.map.carry,
        extras=algorithm.map.extras,
        matches=algorithm.reduce.matches,
    )
    model = work.objective.model
    attributes = {
        "config": config.model_dump(mode="json", exclude={"root", "address"}),
        "algorithm": repr(algorithm),
        "data": asdict(description),
        "network": {"inputs": model.inputs, "outputs": model.outputs},
        "fingerprint": work.fingerprint,
        **provenance(),
    }
    return RoundStore.create(address, schema, config.rounds, attributes, initial, config.fsync)


def provenance() -> dict[str, Any]:
    """What the record of a run tells of the software that made it, and when (seconds since the epoch)."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    return {"versions": versions, "created": time.time()}


def _called(config: TrainConfig) -> tuple[str, str]:
    """What the name of a run begins with; of own code file and name."""
    return config.algorithm.label.replace(".py:", "."), short_name(config.model)


def _check_same_experiment(store: RoundStore, config: TrainConfig, description: Description) -> None:
    differing = differences(store.attributes["config"], config.experiment)
    if store.attributes["data"]["digest"] != description.digest:
        differing.append("data: other examples")
    if differing:
        raise ExperimentDiffers(
            f"{run_name(store.address)} is another experiment ({'; '.join(differing)}); "
            "give this one another --name"
        )


def _recovered(store: RoundStore, rounds: int, partitions: Partitions) -> tuple[RoundStore, int]:
    """The store with room for its rounds and with the splits that they had, and the last round that is whole."""
    done, _ = recover(store)
    if not partitions.source.partitioned:
        for number in range(partitions.split.number(done) + 1):
            store.tensors.write_split(number, partitions.assignment)
    return store.extend(rounds), done
