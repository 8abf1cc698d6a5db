"""Rounds with a deadline: once it has its quorum, a round goes on without those that have not answered by then."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from distributed import Future, wait

from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.executors.clusters.workers import LOOK_SECONDS, finished, result
from roundweave.tasks.executors.pool import WorkerPool
from roundweave.tasks.executors.round_tasks import FAN_IN, RoundTasks
from roundweave.tasks.rounds.job import AUTO_DEADLINE, Job
from roundweave.tasks.rounds.steps import BlockResult
from roundweave.tasks.rounds.timing import notify

LEAST_SECONDS = 1.0
"""The shortest deadline that follows from the rounds before."""

MOST = 1000
"""How many of the last answers' seconds decide it."""


class DeadlineRounds:
    """Runs rounds on the workers of a pool, each with a deadline; every partition is a block of its own."""

    def __init__(self, pool: WorkerPool, fan_in: int = FAN_IN) -> None:
        self.pool = pool
        self.fan_in = fan_in
        self._took: list[float] = []
        self._absent: set[int] = set()
        self._held: list[Future[Any]] = []  # states that were scored stay at their sites for the next maps

    def seconds(self, wanted: float | str) -> float:
        """The deadline in seconds; if it is `AUTO_DEADLINE`, the median of the last answers and three MADs.

        MAD is the median absolute deviation. There is no deadline before the first answers.
        """
        if wanted != AUTO_DEADLINE:
            return float(wanted)
        if not self._took:
            return math.inf
        median = statistics.median(self._took)
        deviation = statistics.median(abs(seconds - median) for seconds in self._took)
        return max(LEAST_SECONDS, median + 3 * deviation)

    def commits(self, job: Job, rounds: Sequence[int]) -> Iterator[Commit]:
        """Compute rounds one after the other, and yield their commits. Raises as `finished` does."""
        before: Future[Any] | None = None
        for round in rounds:
            maps = RoundTasks(self.pool, job, self.fan_in)
            first = before or maps.read(round - 1)
            keys = maps.maps(round, first)
            accepted = [
                maps.add(maps.key("accepted", round, at), count_accepted, key) for at, key in enumerate(keys)
            ]
            wanted = [*keys, *accepted] if before else [*keys, *accepted, first]
            futures = self._submit(maps, wanted)
            before = before or futures.pop()
            results, answers = futures[: len(keys)], futures[len(keys) :]
            finished(self.pool.client, before, look=lambda: self.pool.look(job))
            present = self._answered(job, round, answers)
            for late in set(range(len(keys))) - {*present}:
                results[late] = BlockResult(dict.fromkeys(job.plan_of(round).nodes(late)), {}, job.work.code)
            rest = RoundTasks(self.pool, job, self.fan_in)
            commit = rest.finish(round, before, results, present, (), closing=round == rounds[-1])
            states = [key for key in rest.graph if key[0] == "state"]
            committed, before, *self._held = self._submit(rest, [commit, rest.key("reduce", round), *states])
            yield result(self.pool.client, committed, look=lambda: self.pool.look(job))

    def _submit(self, tasks: RoundTasks, keys: Sequence[Any]) -> list[Any]:
        return self.pool.submit(tasks.job, tasks.graph, list(keys), lambda key: 0)

    def _answered(self, job: Job, round: int, answers: Sequence[Future[Any]]) -> list[int]:
        """The blocks that answer in time. Raises `LostWork` if one cannot be computed."""
        assert job.attempt.deadline is not None
        seconds, began = self.seconds(job.attempt.deadline), time.monotonic()
        took: dict[int, float] = {}
        while True:
            waited = time.monotonic() - began
            for block, future in enumerate(answers):
                if future.status != "pending" and block not in took:
                    finished(self.pool.client, future)
                    took[block] = waited
            accepted = sum(answers[block].result() for block in took) if waited >= seconds else 0
            if len(took) == len(answers) or (waited >= seconds and accepted >= job.work.quorum):
                break
            left = [future for block, future in enumerate(answers) if block not in took]
            pause = min(LOOK_SECONDS, max(0.0, seconds - waited) or LOOK_SECONDS)
            with suppress(TimeoutError), self.pool.client.as_current():
                wait(left, timeout=pause, return_when="FIRST_COMPLETED")
            self.pool.look(job)
        self._took = [*self._took, *took.values()][-MOST:]
        self._notify(
            job, round, {job.plan_of(round).members(b)[0] for b in range(len(answers)) if b not in took}, seconds
        )
        return sorted(took)

    def _notify(self, job: Job, round: int, absent: set[int], seconds: float) -> None:
        """Notify of partitions that are absent, or answer again."""
        called = job.work.partitions.called
        for partition in absent - self._absent:
            notify(f"{called(partition)} has not answered in {seconds:.3g} s: round {round} goes on without it")
        answering = {*job.plan_of(round).taking_part} - absent
        for partition in self._absent & answering:
            notify(f"{called(partition)} answers again in round {round}")
        self._absent = (self._absent | absent) - answering


def count_accepted(job: Job, result: BlockResult) -> int:
    """How many updates of a block were accepted."""
    return sum(record.refused is None for record in result.records.values())
