"""The Dask tasks of a round, and where each runs: maps with the examples, all else where the store is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distributed import Future

from roundweave.tasks.algorithms.topology import own_slots
from roundweave.tasks.executors.clusters.calls import (
    elsewhere,
    itself,
    run_pure,
    run_step,
    run_until_let_go,
    step_after,
    step_aside,
)
from roundweave.tasks.executors.clusters.placement import Key
from roundweave.tasks.executors.pool import WorkerPool
from roundweave.tasks.rounds.evidence.replaying import (
    compare_block,
    fold_again,
    map_inputs,
    read_inputs,
    replay_block,
    replay_round,
)
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.apart import (
    map_apart,
    persist_apart,
    read_carries,
    read_own,
    score_apart,
    state_to_map,
)
from roundweave.tasks.rounds.persistence.committing import Computed, commit_round, score_outcome
from roundweave.tasks.rounds.persistence.mapping import load_and_persist, load_block, map_and_persist
from roundweave.tasks.rounds.persistence.recomputing import read_outcome
from roundweave.tasks.rounds.steps import fold_results, reduce_apply

FAN_IN = 16
"""How many blocks' results one task folds. More blocks get a tree of tasks, so that no worker has them all."""

Result = Any
"""What a task needs: the key of another one, a future, or the value itself."""


class RoundTasks:
    """Makes a `graph` of the tasks of a job's rounds for the workers of a pool.

    One task folds the results of `fan_in` blocks.
    """

    def __init__(self, pool: WorkerPool, job: Job, fan_in: int = FAN_IN) -> None:
        self.pool = pool
        self.job = job
        self.fan_in = fan_in
        self.shared = pool.shared(job)
        self.graph: dict[Key, Any] = {}
        self._data: dict[int, list[Future[Any]]] = {}

    def add(self, key: Key, function: Callable[..., Any], *arguments: Any) -> Key:
        """Add the task of a step that is called with the job and these arguments; returns its key."""
        self.graph[key] = (run_step, function, self.shared, *arguments)
        return key

    def window(self, rounds: Sequence[int]) -> list[Key]:
        """Neighbouring rounds: the state before the first is read, and each is committed; the commits' keys."""
        commits: list[Key] = []
        before = self.read(rounds[0] - 1)
        for round in rounds:
            mapped, blocks = self.maps(round, before), range(self.job.blocks)
            commits.append(self.finish(round, before, mapped, blocks, commits[-1:], round == rounds[-1]))
            before = self.key("reduce", round)
        return commits

    def read(self, round: int) -> Key:
        """The task that gives the outcome of a committed round."""
        return self.add(self.key("read", round), read_outcome, round)

    def key(self, kind: str, round: int, block: int | str = 0) -> Key:
        """The key of a task."""
        return self.pool.key(self.job, kind, round, block)

    def _examples(self, round: int) -> list[Future[Any]]:
        """Futures of each block's examples in a round."""
        if round not in self._data:
            self._data[round] = self.pool.data(self.job, round, load_and_persist)
        return self._data[round]

    def maps(self, round: int, before: Result, blocks: Iterable[int] | None = None) -> list[Key]:
        """The tasks that map blocks of a round and store their updates; the keys of the blocks' results.

        Without given `blocks` it is all of them.
        """
        maps: list[Key] = []
        results: list[Key] = []
        for block in range(self.job.blocks) if blocks is None else blocks:
            examples, key = self._examples(round)[block], self.key("map", round, block)
            called = self._called(maps)
            maps.append(key)
            if not self.pool.placement.apart:
                self.graph[key] = (*called, map_and_persist, self.shared, before, examples, block, elsewhere)
                results.append(key)
                continue
            carry: Any = {}
            if self.job.work.algorithm.map.carry or self.job.work.topology:
                carry = self.add(self.key("carry", round, block), read_carries, before, block)
            sent = self._sent(before, round - 1, round, block)
            self.graph[key] = (*called, map_apart, self.shared, *sent, carry, examples)
            results.append(self.add(self.key("persist", round, block), persist_apart, round, key, block))
        return results

    def finish(
        self,
        round: int,
        before: Result,
        results: Sequence[Result],
        blocks: Iterable[int],
        previous: Sequence[Key],
        closing: bool,
        asked: Sequence[int] | None = None,
    ) -> Key:
        """The tasks that fold and reduce the blocks' results, score some `blocks`, and commit; the commit's key.

        `before` is the outcome before the round. `previous` has the key of the commit before, if that is made in
        this graph. The `closing` round is the last of its window. `asked` are the partitions of which an update is
        wanted, if those are not all that may take part.
        """
        after, commit = self.key("reduce", round), self.key("commit", round)
        folded = self._folded((run_pure, fold_results, self.shared), round, results)
        self.graph[after] = (run_pure, reduce_apply, self.shared, before, folded)
        scored = [self._score(round, after, block) for block in blocks] if self.job.attempt.scored(round) else []
        computed, last = (Computed, after, scored, asked), next(iter(previous), None)
        self.graph[commit] = (step_aside, commit_round, self.shared, computed, last, closing)
        return commit

    def _score(self, round: int, after: Key, block: int) -> Key:
        """The task that scores a round on the held-out examples of a block."""
        examples, key = self._examples(round)[block], self.key("score", round, block)
        if not self.pool.placement.apart:
            return self.add(key, score_outcome, after, examples)
        own: Any = None
        if own_slots(self.job.work.algorithm.map.carry):
            own = self.add(self.key("own", round, block), read_own, after, block)
        return self.add(key, score_apart, *self._sent(after, round, round, block), own, examples)

    def _sent(self, outcome: Result, number: int, round: int, block: int) -> tuple[Any, Any]:
        """The state of round `number`, as a block of a `round` is mapped or scored with it, and what is frozen.

        Each site gets them once, and its workers from each other.
        """
        sent, site = self.key("send", number), self.pool.placement.site(self.job.plan_of(round).members(block)[0])
        if sent not in self.graph:
            self.add(sent, state_to_map, outcome)
        frozen: Any = self.pool.frozen(self.job, site) if self.job.work.objective.layout.frozen else {}
        if not site:
            return sent, frozen
        there = self.key("state", number, site)
        self.graph[there] = (run_step, itself, sent)
        return there, frozen

    def replays(self, rounds: Sequence[int]) -> list[Key]:
        """The tasks of replayed rounds: maps, folds, and the result of each round; the keys of these results."""
        return [self._replay(round) for round in rounds]

    def _replay(self, round: int) -> Key:
        maps: list[Key] = []
        results: list[Key] = []
        for block, examples in enumerate(self.pool.data(self.job, round, load_block)):
            key, called = self.key("map", round, block), self._called(maps)
            maps.append(key)
            if self.pool.placement.apart:
                inputs = self.add(self.key("inputs", round, block), read_inputs, round, block)
                self.graph[key] = (*called, map_inputs, self.shared, round, inputs, examples)
                results.append(self.add(self.key("compare", round, block), compare_block, round, key, block))
            else:
                self.graph[key] = (*called, replay_block, self.shared, round, examples, block)
                results.append(key)
        folded = self._folded((run_step, fold_again, self.shared), round, results)
        return self.add(self.key("result", round), replay_round, round, folded)

    def _folded(self, fold: tuple[Any, ...], round: int, results: Sequence[Result]) -> Sequence[Result]:
        """What the reduce of a round gets: the blocks' results, or those of tasks that fold these, if many.

        Their tasks begin as `fold`.
        """
        rules, number = self.job.work.algorithm, 0
        if rules.reduce.gathers or rules.when.asynchronous:
            return results
        for groups in self.job.plan.folds(self.fan_in):
            level, results = results, []
            for group in groups:
                key, number = self.key("fold", round, number), number + 1
                self.graph[key] = (*fold, round, list(level[group.start : group.stop]))
                results.append(key)
        return results

    def _called(self, before: Sequence[Key]) -> tuple[Any, ...]:
        """The beginning of a map's task.

        If the plan maps blocks one by one, it waits for the map before it; if the round may go on without it, it
        ends once that has.
        """
        if not self.job.waits_for_all:
            return (run_until_let_go,)
        return (step_after, before[-1]) if self.job.one_by_one and before else (run_step,)
