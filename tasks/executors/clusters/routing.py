"""The names of tasks, and where each runs: where it likes, or where a worker offers what the task needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from roundweave.tasks.data.splits.placement import ANYWHERE, Placement
from roundweave.tasks.rounds.job import Job

Key = tuple[str, str, int, Any]

WITH_EXAMPLES = ("data", "map", "maps", "score")
"""Kinds of tasks that need examples. All other kinds are small, and go first."""

BESIDE_MAPS = (*WITH_EXAMPLES, "state", "frozen")
"""Kinds of tasks that run where maps do. All other kinds may use the store."""

TO_MAP = "roundweave-maps"
"""The resource of all workers but a process that only stores."""


class Task(NamedTuple):
    """The parts of a Dask key, which is a plain tuple: `Task(*key)` reads one.

    Dask measures durations by `kind`. A key must never be used for two different tasks, so `spread` names the
    attempt, how often its work was submitted anew, and the number of blocks. In ``maps``, those of a schedule,
    `round` is the number of the first and `block` the partitions. In ``data``, `round` is the job's `draw`. In
    ``state`` and ``frozen``, `block` is the resource of a place.
    """

    kind: str
    spread: str
    round: int
    block: Any

    @property
    def attempt(self) -> str:
        return self.spread.split("-")[0]

    def partitions(self, job: Job) -> Sequence[int]:
        """Return the partitions that the task works on.

        Its key has the number of blocks that the plan had then.
        """
        if self.kind == "maps":
            return tuple(self.block)
        return replace(job, blocks=int(self.spread.rpartition("-")[2])).plan_of(self.round).members(self.block)


@dataclass(frozen=True)
class Routing:
    """Where tasks run. By default each worker can do each task, and reaches the store.

    With `apart`, tasks run where workers offer what they need: to map, or to store. `store` is the resource of
    those that reach the store; empty if all do. `placement` says where the examples of partitions stay.
    """

    placement: Placement = ANYWHERE
    store: str = ""
    apart: bool = False

    def needs(self, kind: str, partition: int) -> dict[str, float]:
        """Return the Dask resources that a task of this kind needs for a partition.

        None if any worker can do it.
        """
        if not self.apart:
            return {}
        if kind not in BESIDE_MAPS:
            return {self.store: 1} if self.store else {}
        return {self.placement.resource(partition) or TO_MAP: 1}

    def where(self, job: Job, key: Key, home: str) -> dict[str, Any]:
        """Return what Dask is told of where a task runs.

        It prefers the worker at `home` where any worker can do it.
        """
        task = Task(*key)
        if not self.apart:  # Dask loses a task that has both
            return {"workers": [home] if home else [], "allow_other_workers": True}
        if isinstance(task.block, str) and task.block:
            return {"resources": {task.block: 1}}
        partition = task.partitions(job)[0] if self.placement.stays and task.kind in WITH_EXAMPLES else 0
        return {"resources": self.needs(task.kind, partition)}
