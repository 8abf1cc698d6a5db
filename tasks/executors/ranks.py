"""A rank of a gang as a task on a Dask worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from distributed import get_worker

from tasks.data.partitions import Partition
from tasks.gang.collectives import Broken
from tasks.gang.group import Seat, joined, open_door
from tasks.gang.rounds import run_rank
from tasks.numerics import generators_kept
from tasks.rounds.job import Job

Told = tuple[str, int]
"""What a rank tells the client: at which port it is the others' ``door``, or which ``round`` is committed."""


_halted: set[str] = set()


async def halt(topic: str) -> None:
    """Called on a worker: the ranks that talk about this end with the round that they are at."""
    _halted.add(topic)


def take_part(job: Job, split: int, data: list[Partition], seat: Seat, topic: str) -> int | None:
    """Be a rank in all rounds that follow the last committed one; the last that it knows to be committed.

    `data` are the examples of its block under a split, by number. Gives None where another rank is lost. Ends
    early once nobody waits for the task any more.
    """
    worker, forgotten = get_worker(), _forgotten(topic)
    door = open_door(seat.host) if seat.rank == 0 else None
    if door is not None:
        seat = replace(seat, port=door.port)
        worker.log_event(topic, ("door", seat.port))
    try:
        with joined(seat, forgotten, door) as group, generators_kept():
            return run_rank(
                job, group, (split, data), forgotten, lambda round: worker.log_event(topic, ("round", round))
            )
    except Broken:
        return None
    finally:
        _halted.discard(topic)


def _forgotten(topic: str) -> Callable[[], bool]:
    """Whether the ranks are halted, or nobody waits any more for the task that is under way."""
    worker, key = get_worker(), get_worker().get_current_task()

    def forgotten() -> bool:
        task = worker.state.tasks.get(key)
        return topic in _halted or task is None or task.state != "executing"

    return forgotten
