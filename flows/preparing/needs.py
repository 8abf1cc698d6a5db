"""What a new run will need of the disk and of memory: said before it begins, and refused if it cannot fit."""

from __future__ import annotations

import platform
import shutil
from collections import Counter
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from roundweave.flows.recording import schema_of
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import UsageError
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.places.base import Place
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.upkeep.keep import Keep, Last
from roundweave.storage.values.tensors import specs_bytes
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.rounds.job import Work

LARGE = 10**9
"""From so many bytes on, what a run will need is said."""

COPIES = 4
"""A worker has at least so many copies of the parameters at once: the state, the next one, and two updates.

Of a single partition there is one update. While a partition is mapped there are the state, the network, whose
memory the direction takes, and the gradient.
"""


@dataclass(frozen=True)
class Needs:
    """What the rounds of a run store, and the bytes of a worker's memory besides activations.

    `updates` is the number of updates of a round.
    """

    schema: Schema
    memory: int
    updates: int

    @classmethod
    def of(cls, work: Work) -> Needs:
        """What the rounds of a run need."""
        layout = work.objective.layout
        none = {spec.dtype: torch.empty(0, dtype=getattr(torch, spec.dtype)) for spec in layout.params}
        copies = min(COPIES, 2 + work.partitions.taking_part)
        held = copies * specs_bytes(layout.params) // work.compute.ranks + 2 * specs_bytes(layout.frozen)
        updates = work.algorithm.when.updates(work.partitions.taking_part)
        return cls(schema_of(work, work.algorithm.apply.init(none)), held, updates)

    def stored(self, keep: Keep, rounds: int) -> int:
        """The bytes that stay of so many rounds under a policy, the newest round whole."""
        states, updates = keep.counts(rounds)
        return self.schema.stored_bytes(states, updates * self.updates)

    def check_disk(self, place: Place, keep: Keep, rounds: int) -> None:
        """Say what a run will store if that is much; raises `UsageError` if its disk has not enough room."""
        needed, free = self.stored(keep, rounds), _free(place)
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
        """Say what a worker will need if that is much; raises `UsageError` if a machine has not so much memory."""
        if self.memory < LARGE:
            return
        total = dict(machines := list(executor.each(_machine).values()))
        for machine, processes in Counter(name for name, _ in machines).items():
            if processes * self.memory > total[machine]:
                raise UsageError(
                    f"each of {processes} processes on {machine} needs {_size(self.memory)} of memory, and it has "
                    f"{_size(total[machine])} in all; give fewer --workers, or ranks that share the network"
                )
        notice(f"a process that maps will need {_size(self.memory)} of memory, and more for activations")


def _size(size: int) -> str:
    return f"{size / 1e9:.3g} GB"


def _free(place: Place) -> int | None:
    """The bytes that are free where a run will lie; None if it is no local disk."""
    if not isinstance(place, LocalPlace):
        return None
    folder = place.path
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _machine() -> tuple[str, int]:
    """The name of this process's machine, and the bytes of its memory."""
    memory: Any = psutil.virtual_memory()
    return platform.node(), memory.total
