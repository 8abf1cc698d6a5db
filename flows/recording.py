"""What a new run records, and what it needs of the disk and of memory. A run that cannot fit is refused."""

from __future__ import annotations

import platform
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import psutil
import torch

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import Described
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import UsageError
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.places.base import Place
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep, Last
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import specs_bytes
from roundweave.tasks.algorithms.applies.optimizers import kept_memory
from roundweave.tasks.data.description import CallEach, gather_here
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.numerics.fingerprints import versions
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.persistence.committing import score_again
from roundweave.tasks.rounds.steps import Outcome

LARGE = 10**9
"""A message reports the needs of a run that are this many bytes or more."""

COPIES = 4
"""The copies of the parameters in a worker at least: the state, the next state, and two updates.

A single partition has one update. During a map there are the state, the network and the gradient. The direction
takes the memory of the network.
"""


@dataclass(frozen=True)
class NewRun:
    """What a run records when it is created: its work, and what any process can read without the user's code.

    `processes` is the number of mapping processes.
    """

    work: Work
    attributes: Mapping[str, Any]
    columns: bytes
    rounds: int
    fsync: bool
    processes: int
    scored: bool


def new_run(described: Described, processes: int = 1, **attributes: Any) -> NewRun:
    """Return what a described plan records. `attributes` are added to those of every run, such as ``parent``."""
    plan, work, description = described.plan, described.work, described.description
    config, model = plan.config, work.objective.model
    recorded = {
        "config": _recorded(config),
        "algorithm": repr(work.algorithm),
        "data": description.recorded,
        "network": {"inputs": model.inputs, "outputs": model.outputs},
        "fingerprint": work.fingerprint,
        **({"fingerprints": work.fingerprints} if work.fingerprints else {}),
        **({"asks": "present"} if work.drawn_from_present else {}),
        **({"awaits": plan.awaits} if plan.awaits else {}),
        **({"decided_by": [*plan.decided_by]} if plan.decided_by else {}),
        **provenance(plan.decided_by),
        **attributes,
    }
    scored = bool(description.held_out)
    return NewRun(work, recorded, description.columns.content(), config.rounds, config.fsync, processes, scored)


def create_run(
    address: str,
    new: NewRun,
    initial: State,
    carried: Mapping[int, Update] = MappingProxyType({}),
    gather: CallEach = gather_here,
) -> None:
    """Create a run at an address, and commit its initial state and score as round 0.

    `initial` is the initial state; of its outer optimizer's memory, only the slots that the run's apply keeps are
    taken. `carried` has the updates that bring the carry of partitions from another run (see `RoundStore.create`).
    `gather` calls a function with numbers where the held-out examples lie. Raises `ExperimentDiffers` if the
    address is taken, and `RoundFailed` if scoring fails.
    """
    initial = replace(initial, memory=kept_memory(new.work.algorithm.apply, initial), round=0)
    schema = schema_of(new.work, initial.memory, new.processes)
    scored = score_again(new.work, Outcome(initial), gather) if new.scored else None
    how = (new.fsync, carried, scored, new.columns)
    RoundStore.create(address, schema, new.rounds, new.attributes, initial, *how)


def _recorded(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration as JSON, without the place of the run and without unrecorded fields."""
    fields = type(config).model_fields.items()
    beside = {
        name
        for name, field in fields
        if isinstance(more := field.json_schema_extra, dict) and more.get("recorded") is False
    }
    return config.model_dump(mode="json", exclude={"root", "address"} | beside)


def schema_of(work: Work, memory: Iterable[str], processes: int = 1) -> Schema:
    """Return the schema of a run of some work. `memory` are the slots of its apply.

    Updates of neighbouring partitions share files. There are enough files for `processes` mapping processes.
    Updates that are written alone share none, as those of a parameter server, of ranks that share a network, or of
    places.
    """
    algorithm = work.algorithm
    schema = Schema(
        layout=work.objective.layout,
        partitions=work.partitions.split.partitions,
        memory=tuple(memory),
        carry=algorithm.map.carry,
        extras=algorithm.map.extras,
        matches=algorithm.reduce.matches,
        observed=tuple(algorithm.map.observes),
    )
    alone = work.schedule or work.mapper.ranks > 1 or work.partitions.placement.stays
    return schema if alone else schema.sharded(processes, work.partitions.taking_part)


def provenance(plugins: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the versions of the installed software and of `plugins`, and the time in seconds since the epoch."""
    return {"versions": {**versions(), **plugins}, "created": time.time()}


@dataclass(frozen=True)
class Needs:
    """The bytes that the rounds of a run store, and the bytes of a worker's memory besides activations.

    `updates` is the number of updates of a round.
    """

    schema: Schema
    memory: int
    updates: int

    @classmethod
    def of(cls, work: Work) -> Needs:
        """Return the needs of a run's rounds."""
        layout = work.objective.layout
        none = {spec.dtype: torch.empty(0, dtype=getattr(torch, spec.dtype)) for spec in layout.params}
        copies = min(COPIES, 2 + work.partitions.taking_part)
        held = copies * specs_bytes(layout.params) // work.mapper.ranks + 2 * specs_bytes(layout.frozen)
        updates = work.algorithm.when.updates(work.partitions.taking_part)
        return cls(schema_of(work, work.algorithm.apply.init(none)), held, updates)

    def stored(self, keep: Keep, rounds: int) -> int:
        """Return the bytes that stay of so many rounds under a policy, the newest round whole."""
        states, updates = keep.counts(rounds)
        return self.schema.stored_bytes(states, updates * self.updates)

    def check_disk(self, place: Place, keep: Keep, rounds: int, may_stop: bool = False) -> None:
        """Report what a run will store if that is much. Raises `UsageError` if the disk has too little room.

        A run that `may_stop` early needs room for one round only.
        """
        needed, free = self.stored(keep, rounds), place.free()
        if may_stop and free is not None and self.stored(keep, 1) <= free < needed:
            full = bisect_right(range(rounds), free, key=lambda round: self.stored(keep, round)) - 1
            notice(
                f"a round stores {_size(self.stored(keep, 2) - self.stored(keep, 1))} with --keep {keep}, and "
                f"{_size(free)} are free at {place}, enough for {full} rounds"
            )
            return
        if free is not None and needed > free:
            least = Last(1)
            fewest = self.stored(least, rounds)
            advice = f"--keep {least} stores {_size(fewest)}" if fewest <= free else "give another --root"
            raise UsageError(
                f"{rounds} rounds would store {_size(needed)} with --keep {keep}, and {_size(free)} are free at "
                f"{place}; {advice}"
            )
        if needed >= LARGE:
            room = "" if free is None else f" of {_size(free)} that are free"
            updates = self.updates * self.schema.update_bytes
            each = f"{_size(self.schema.state_bytes)} a state and {_size(updates)} the updates of a round"
            notice(f"{rounds} rounds will store {_size(needed)}{room}: {each}; --keep {keep}")

    def check_memory(self, executor: Executor) -> None:
        """Report what a worker will need if that is much.

        Raises `UsageError` if a machine has too little memory.
        """
        if self.memory < LARGE:
            return
        total = dict(machines := list(executor.each(_machine).values()))
        for machine, processes in Counter(name for name, _ in machines).items():
            if processes * self.memory > total[machine]:
                raise UsageError(
                    f"each of {processes} processes on {machine} needs {_size(self.memory)} of memory, and it has "
                    f"{_size(total[machine])} in total; give fewer --workers, or ranks that share the network"
                )
        notice(f"each training process will need {_size(self.memory)} of memory, and more for activations")


def _size(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def _machine() -> tuple[str, int]:
    """Return the name of this process's machine, and the bytes of its memory."""
    memory: Any = psutil.virtual_memory()
    return platform.node(), memory.total
