"""Rounds that do not wait for all: with a patience that ends, or that ask some of those that are there.

Once it has its quorum, a round goes on without those that have not answered in time, or that went away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from distributed import Future, wait

from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.executors.clusters.routing import Task
from roundweave.tasks.executors.clusters.workers import (
    LOOK_SECONDS,
    LostWork,
    finished,
    usable_workers,
    wait_at_most,
)
from roundweave.tasks.executors.pool import WorkerPool
from roundweave.tasks.executors.round_tasks import FAN_IN, RoundTasks
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.steps import BlockResult
from roundweave.tasks.rounds.timing import notify

LAST_ANSWERS = 1000
"""How many of the last answers' seconds the patience is told."""


class QuorumRounds:
    """Runs rounds on the workers of a pool, one by one; the partitions of a file of updates are a block."""

    def __init__(self, pool: WorkerPool, fan_in: int = FAN_IN) -> None:
        self.pool = pool
        self.fan_in = fan_in
        self._took: list[float] = []
        self._absent: set[int] = set()
        self._held: list[Future[Any]] = []  # states that were scored stay at their places for the next maps

    def commits(self, job: Job, rounds: Sequence[int]) -> Iterator[Commit]:
        """Compute rounds one after the other, and yield their commits. Raises as `finished` does."""
        pool, placement = self.pool, self.pool.setting.placement
        wait_at_most(pool.client, pool.setting.wait_for_workers, placement, job.work.quorum)
        job, before = pool.spread(job), None
        for round in rounds:
            asked = self._asked(job, round)
            blocks, maps = asked or range(job.blocks), RoundTasks(pool, job, self.fan_in)
            first: Any = before or maps.read(round - 1)
            keys = maps.maps(round, first, blocks)
            counts = [maps.add("accepted", round, Task(*key).block, count_accepted, key) for key in keys]
            futures = maps.submit([*keys, *counts, *([] if before else [first])])
            before = before or futures.pop()
            mapped = dict(zip(blocks, futures[: len(blocks)], strict=True))
            answers = dict(zip(blocks, futures[len(blocks) :], strict=True))
            pool.wait(before)
            present = self._answered(job, round, answers)
            for late in answers.keys() - {*present}:
                _release([mapped[late], answers[late]])
            nodes = job.plan_of(round).nodes
            results = [
                mapped[block] if block in present else BlockResult(dict.fromkeys(nodes(block)), {}, job.work.code)
                for block in range(job.blocks)
            ]
            rest, closing = RoundTasks(pool, job, self.fan_in), round == rounds[-1]
            commit = rest.finish(round, before, results, present, None, closing, asked)
            states = [key for key in rest.graph if key[0] == "state"]
            committed, before, *self._held = rest.submit([commit, rest.key("reduce", round), *states])
            done = pool.result(committed)
            _release(futures)
            yield done

    def _asked(self, job: Job, round: int) -> tuple[int, ...] | None:
        """Return the partitions that a round asks of those that are there, each a block; None if it may ask any.

        It waits until a quorum is there.
        """
        if not job.work.drawn_from_present:
            return None
        while len(there := self.pool.there()) < job.work.quorum:
            usable_workers(self.pool.client)
        return job.work.asks(round, tuple(there))

    def _answered(self, job: Job, round: int, answers: Mapping[int, Future[Any]]) -> list[int]:
        """Return the blocks that answer in time.

        Raises `LostWork` if one cannot be computed, or too few are there.
        """
        seconds = job.patience.seconds(self._took) if job.patience else math.inf
        began = time.monotonic()
        took: dict[int, float] = {}
        while True:
            waited = time.monotonic() - began
            for block, future in answers.items():
                if future.status != "pending" and block not in took:
                    finished(self.pool.client, future)
                    took[block] = waited
            left = answers.keys() - took.keys()
            gone = left - {*self.pool.there()} if job.work.drawn_from_present else set[int]()
            over = waited >= seconds or left == gone
            if not left or (over and sum(answers[block].result() for block in took) >= job.work.quorum):
                break
            if left == gone:
                raise LostWork(f"{', '.join(map(job.work.partitions.called, sorted(gone)))} went away")
            usable_workers(self.pool.client)
            pause = min(LOOK_SECONDS, max(0.0, seconds - waited) or LOOK_SECONDS)
            with suppress(TimeoutError), self.pool.client.as_current():
                wait([answers[block] for block in left], timeout=pause, return_when="FIRST_COMPLETED")
            self.pool.look()
        self._took = [*self._took, *took.values()][-LAST_ANSWERS:]
        self._notify(job, round, answers.keys(), left, min(waited, seconds))
        return sorted(took)

    def _notify(self, job: Job, round: int, asked: Collection[int], left: Collection[int], seconds: float) -> None:
        """Notify of partitions that are absent, or answer again; `asked` are blocks, of which some are `left`."""
        called, members = job.work.partitions.called, job.plan_of(round).members
        absent = {partition for block in left for partition in members(block)}
        for partition in sorted(absent - self._absent):
            notify(f"{called(partition)} has not answered in {seconds:.3g} s: round {round} continues without it")
        answering = {partition for block in asked for partition in members(block)} - absent
        for partition in sorted(self._absent & answering):
            notify(f"{called(partition)} answers again in round {round}")
        self._absent = (self._absent | absent) - answering


def _release(futures: Sequence[Future[Any]]) -> None:
    """Let go of tasks and their values now: Dask's graphs refer to them until Python collects its garbage."""
    for future in futures:
        future.release()


def count_accepted(job: Job, result: BlockResult) -> int:
    """Return how many updates of a block were accepted."""
    return sum(record.refused is None for record in result.records.values())
