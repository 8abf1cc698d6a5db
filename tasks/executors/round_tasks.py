"""The Dask tasks of rounds, as graphs by key: of a window of a training run, and of replayed rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Future

from roundweave.tasks.executors.on_worker import elsewhere, run_step, step_after, step_aside
from roundweave.tasks.executors.pool import Key, Task, WorkerPool
from roundweave.tasks.rounds.evidence.replaying import fold_again, replay_block, replay_round
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import (
    Computed,
    commit_round,
    fold_round,
    reduce_round,
    score_outcome,
)
from roundweave.tasks.rounds.persistence.mapping import load_and_persist, load_block, map_and_persist, read_outcome

FAN_IN = 16
"""How many blocks' results one task folds. More blocks get a tree of tasks, so that no worker has them all."""


@dataclass(frozen=True)
class RoundTasks:
    """Makes the tasks of rounds for the workers of a pool; one task folds the results of `fan_in` blocks."""

    pool: WorkerPool
    fan_in: int = FAN_IN

    def of_window(self, job: Job, rounds: Sequence[int]) -> dict[Key, Any]:
        """The tasks of neighbouring rounds: the state before the first one is read, and each is committed."""
        shared = self.pool.shared(job)
        before = self.pool.key(job, "read", rounds[0] - 1)
        graph: dict[Key, Any] = {before: (run_step, read_outcome, shared, rounds[0] - 1)}
        previous: Key | None = None
        for round in rounds:
            graph |= self._round(job, shared, round, before, previous, round == rounds[-1])
            before, previous = self.pool.key(job, "reduce", round), self.pool.key(job, "commit", round)
        return graph

    def _round(
        self, job: Job, shared: Future[Any], round: int, before: Key, previous: Key | None, closing: bool
    ) -> dict[Key, Any]:
        """The tasks of one round: maps, folds, the reduce, scores, and the commit.

        `before` is the key of the state that the round begins from, `previous` that of the commit before, None at
        the beginning of a window. The `closing` round is the last of its window.
        """
        graph: dict[Key, Any] = {}
        after = self.pool.key(job, "reduce", round)
        mapped: list[Key] = []
        scored: list[Key] = []
        for block, examples in enumerate(self.pool.data(job, round, load_and_persist)):
            called = _called(job, mapped)
            mapped.append(self.pool.key(job, "map", round, block))
            graph[mapped[-1]] = (*called, map_and_persist, shared, before, examples, block, elsewhere)
            if job.attempt.scored(round):
                scored.append(self.pool.key(job, "score", round, block))
                graph[scored[-1]] = (run_step, score_outcome, shared, after, examples)
        folded = self._folded(graph, job, shared, fold_round, mapped)
        graph[after] = (run_step, reduce_round, shared, before, folded)
        commit = (step_aside, commit_round, shared, (Computed, after, scored), previous, closing)
        graph[self.pool.key(job, "commit", round)] = commit
        return graph

    def of_replays(self, job: Job, rounds: Sequence[int]) -> dict[Key, Any]:
        """The tasks of replayed rounds: maps, folds, and the result of each round."""
        shared = self.pool.shared(job)
        graph: dict[Key, Any] = {}
        for round in rounds:
            mapped: list[Key] = []
            for block, examples in enumerate(self.pool.data(job, round, load_block)):
                called = _called(job, mapped)
                mapped.append(self.pool.key(job, "map", round, block))
                graph[mapped[-1]] = (*called, replay_block, shared, round, examples, block)
            folded = self._folded(graph, job, shared, fold_again, mapped)
            graph[self.pool.key(job, "result", round)] = (run_step, replay_round, shared, round, folded)
        return graph

    def _folded(
        self, graph: dict[Key, Any], job: Job, shared: Future[Any], fold: Callable[..., Any], mapped: list[Key]
    ) -> list[Key]:
        """The keys that the reduce of a round gets: those of its maps, or of the tasks that fold these.

        `mapped` are the keys of the maps. Tasks that call `fold` are added to the graph if there are many.
        """
        rules, round, number = job.work.algorithm, Task(*mapped[0]).round, 0
        if rules.reduce.gathers or rules.when.asynchronous:
            return mapped
        for groups in job.plan.folds(self.fan_in):
            results, mapped = mapped, []
            for group in groups:
                mapped.append(self.pool.key(job, "fold", round, number))
                graph[mapped[-1]] = (run_step, fold, shared, round, results[group.start : group.stop])
                number += 1
        return mapped


def _called(job: Job, before: Sequence[Key]) -> tuple[Any, ...]:
    """The beginning of a map's task. If the plan maps blocks one by one, it waits for the map before it."""
    return (step_after, before[-1]) if job.one_by_one and before else (run_step,)
