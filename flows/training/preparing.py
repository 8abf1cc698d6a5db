"""From a resolved configuration to a job: describe the examples where they are, hold and recover the store."""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flows.config.recorded import differences
from flows.config.resolving import Resolved, short_name
from flows.config.train import Dealing, TrainConfig
from flows.reporting.listening import notice
from flows.training.work import work_of
from storage.errors import ExperimentDiffers
from storage.hierarchy.schema import Schema
from storage.rounds.lease import hold_lease
from storage.rounds.recovery import recover
from storage.rounds.store import RoundStore
from storage.runs.names import new_name, run_name, run_path
from storage.values.state import State, Update
from tasks.applies.memory import kept_memory
from tasks.data.partitions import Description
from tasks.executors.base import Executor
from tasks.networks.start import Fork, Start
from tasks.numerics import check_fingerprint
from tasks.rounds.job import Attempt, Job, Work
from tasks.rounds.plan import RoundPlan

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
        return run_name(self.store.path)


@contextmanager
def prepared(resolved: Resolved, executor: Executor) -> Iterator[Prepared]:
    """Hold the run of a configuration for writing, new or as far as it came; a failure is recorded in it."""
    work, description = work_of(resolved, executor)
    store = _open_or_create(resolved.config, work, description)
    token = secrets.token_hex(4)
    with hold_lease(store.place, token) as lease:
        store, done = _recovered(store, resolved.config.rounds, work)
        attempt = _attempt(resolved.config, store, token, lease.epoch)
        yield Prepared(Job(work, attempt, RoundPlan(resolved.config.partitions)), store, done)


def _attempt(config: TrainConfig, store: RoundStore, token: str, epoch: int) -> Attempt:
    fields = ("rounds", "evaluate_every", "target_accuracy", "patience", "fsync")
    return Attempt(str(store.path.resolve()), token, epoch, **{name: getattr(config, name) for name in fields})


def _open_or_create(config: TrainConfig, work: Work, description: Description) -> RoundStore:
    path = config.path or run_path(config.root, config.name or new_name(config.root, *_called(config)))
    if config.path is None and not path.exists():
        # Another process may be making the same run at this moment: then it is there now.
        with suppress(ExperimentDiffers):
            return _create(config, path, work, description)
    store = RoundStore(path, config.fsync)
    _check_same_experiment(store, config, description)
    if work.fingerprint and store.attributes["fingerprint"]:
        check_fingerprint(store.attributes["fingerprint"], work.fingerprint, "this machine")
    return store


def _create(config: TrainConfig, path: Path, work: Work, description: Description) -> RoundStore:
    start = config.start_from
    initial = start.state(work.objective) if isinstance(start, Start) else work.objective.initial()
    if not isinstance(start, Fork):
        return create_run(path, config, work, description, initial)
    carried = _carried(start, config, work, description)
    if not carried:
        # Extras that the state keeps, such as a control variate, are of what partitions carry, and go with it.
        memory = {
            slot: vectors for slot, vectors in initial.memory.items() if slot not in work.algorithm.map.extras
        }
        initial = replace(initial, memory=memory)
    if new := sorted(work.algorithm.apply.init(initial.params).keys() - initial.memory.keys()):
        notice(f"{config.name or 'the new run'}: the outer optimizer begins with {', '.join(new)} anew")
    return create_run(path, config, work, description, initial, carried, parent=start.parent)


def _carried(start: Fork, config: TrainConfig, work: Work, description: Description) -> dict[int, Update]:
    """What partitions bring along from another run, where they are the same examples, dealt in the same way."""
    run = start.run()
    same = run.attributes["data"]["digest"] == description.digest
    dealing = config.model_dump(mode="json", include=Dealing.model_fields.keys() - {"data", "target"})
    if not (same and work.algorithm.map.carry and all(run.config[n] == value for n, value in dealing.items())):
        return {}
    from_rounds = run.round(start.parent["round"]).commit.carry_from
    return {partition: run.round(round).update(partition) for partition, round in from_rounds.items()}


def create_run(
    path: Path,
    config: TrainConfig,
    work: Work,
    description: Description,
    initial: State,
    carried: Mapping[int, Update] = MappingProxyType({}),
    **attributes: Any,
) -> RoundStore:
    """A new run that begins with a state, whose memory it takes as far as its apply keeps such slots.

    `carried` is as in `RoundStore.create`; `attributes` are recorded beside those of every run.
    """
    algorithm, model = work.algorithm, work.objective.model
    initial = replace(initial, memory=kept_memory(algorithm.apply, initial), round=0)
    schema = Schema(
        layout=work.objective.layout,
        partitions=config.partitions,
        memory=tuple(initial.memory),
        carry=algorithm.map.carry,
        extras=algorithm.map.extras,
        matches=algorithm.reduce.matches,
    )
    recorded = {
        "config": config.model_dump(mode="json", exclude={"root", "path"}),
        "algorithm": repr(algorithm),
        "data": asdict(description),
        "network": {"inputs": model.inputs, "outputs": model.outputs},
        "fingerprint": work.fingerprint,
        **provenance(),
        **attributes,
    }
    return RoundStore.create(path, schema, config.rounds, recorded, initial, config.fsync, carried)


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
            f"{run_name(store.path)} is another experiment ({'; '.join(differing)}); give this one another --name"
        )


def _recovered(store: RoundStore, rounds: int, work: Work) -> tuple[RoundStore, int]:
    """The store with room for its rounds and with the splits that they had, and the last round that is whole."""
    done, _ = recover(store)
    if not work.partitions.source.partitioned:
        for number in range(work.split(1), work.split(done) + 1):
            store.tensors.write_split(number, work.partitions.assignment)
    return store.extend(rounds), done
