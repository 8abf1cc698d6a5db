"""The Dask tasks of a round, and where each runs: maps with the examples, all else where the store is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distributed import Future

from roundweave.tasks.algorithms.algebra import own_slots
from roundweave.tasks.executors.clusters import calls
from roundweave.tasks.executors.clusters.routing import Key
from roundweave.tasks.executors.pool import WorkerPool
from roundweave.tasks.rounds.evidence import replaying
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence import apart, committing, mapping
from roundweave.tasks.rounds.persistence.outcomes import read_outcome
from roundweave.tasks.rounds.steps import fold_results, reduce_apply

FAN_IN = 16
"""How many blocks' results one task folds. More blocks get a tree of tasks, so that no worker has them all."""

Result = Any
"""What a task needs: the key of another one, a future, or the value calls.itself."""

CALLS = {reduce_apply: calls.run_pure, fold_results: calls.run_pure, committing.commit_round: calls.step_aside}
"""How some steps are called; all others by `run_step`."""


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
        self._transport = ThroughDask() if pool.routing.apart else ThroughStore()

    def key(self, kind: str, round: int, block: int | str = 0) -> Key:
        """Return the key of a task."""
        return self.pool.key(self.job, kind, round, block)

    def add(self, kind: str, round: int, block: int, function: Callable[..., Any], *arguments: Any) -> Key:
        """Add the task of a step that is called with the job and these arguments; returns its key."""
        key = self.key(kind, round, block)
        self.graph[key] = (*self._call(key, function), function, self.shared, *arguments)
        return key

    def _call(self, key: Key, function: Callable[..., Any]) -> tuple[Any, ...]:
        """Return the beginning of a task.

        If the plan maps blocks one by one, a map waits for the one before it; if the round may go on without it,
        it ends once that has.
        """
        kind, _, round, block = key
        if kind == "map" and not self.job.waits_for_all:
            return (calls.run_until_let_go,)
        if kind == "map" and self.job.one_by_one and block:
            return (calls.step_after, self.key("map", round, block - 1))
        return (CALLS.get(function, calls.run_step),)

    def submit(self, keys: list[Key], priority: Callable[[Key], int] = lambda key: 0) -> list[Future[Any]]:
        """Return the futures of some tasks. Those of a higher `priority` go first."""
        return self.pool.submit(self.job, self.graph, keys, priority)

    def window(self, rounds: Sequence[int]) -> list[Key]:
        """Neighbouring rounds: the state before the first is read, and each is committed; the commits' keys."""
        commits: list[Key] = []
        before, blocks = self.read(rounds[0] - 1), range(self.job.blocks)
        for round in rounds:
            mapped, last = self.maps(round, before, blocks), next(reversed(commits), None)
            commits.append(self.finish(round, before, mapped, blocks, last, round == rounds[-1]))
            before = self.key("reduce", round)
        return commits

    def read(self, round: int) -> Key:
        """Return the task that gives the outcome of a committed round."""
        return self.add("read", round, 0, read_outcome, round)

    def maps(self, round: int, before: Result, blocks: Iterable[int]) -> list[Key]:
        """Return the tasks that map blocks of a round and store their updates; the keys of the blocks' results."""
        data = self.pool.data(self.job, round, mapping.load_and_persist)
        return [self._transport.map(self, round, block, before, data[block]) for block in blocks]

    def finish(
        self,
        round: int,
        before: Result,
        results: Sequence[Result],
        blocks: Iterable[int],
        last: Key | None,
        closing: bool,
        asked: Sequence[int] | None = None,
    ) -> Key:
        """Return the tasks that fold and reduce the blocks' results, score some `blocks`, and commit.

        The commit's key.

        `before` is the outcome before the round. `last` is the key of the commit before, if that is made in this
        graph. The `closing` round is the last of its window. `asked` are the partitions of which an update is
        wanted, if those are not all that may take part.
        """
        folded = self._folded(fold_results, round, results)
        after = self.add("reduce", round, 0, reduce_apply, before, folded)
        scored: list[Key] = []
        if self.job.attempt.scored(round):
            data = self.pool.data(self.job, round, mapping.load_and_persist)
            scored = [self._transport.score(self, round, block, after, data[block]) for block in blocks]
        return self.add(
            "commit", round, 0, committing.commit_round, (committing.Computed, after, scored, asked), last, closing
        )

    def replays(self, rounds: Sequence[int]) -> list[Key]:
        """Return the tasks of replayed rounds: maps, folds, and the result of each round.

        The keys of these results.
        """
        return [self._replay(round) for round in rounds]

    def _replay(self, round: int) -> Key:
        data = enumerate(self.pool.data(self.job, round, mapping.load_block))
        results = [self._transport.replay(self, round, block, part) for block, part in data]
        folded = self._folded(replaying.fold_again, round, results)
        return self.add("result", round, 0, replaying.replay_round, round, folded)

    def _folded(self, fold: Callable[..., Any], round: int, results: Sequence[Result]) -> Sequence[Result]:
        """What the reduce of a round gets: the blocks' results, or those of tasks that fold these, if many."""
        rules, number = self.job.work.algorithm, 0
        if rules.reduce.gathers or self.job.work.schedule:
            return results
        for groups in self.job.plan.folds(self.fan_in):
            level, results = results, []
            for group in groups:
                part = list(level[group.start : group.stop])
                results.append(self.add("fold", round, number, fold, round, part))
                number += 1
        return results


class ThroughStore:
    """Tensors pass through the store: what maps a block reads there what it needs, and writes what it gives."""

    def map(self, tasks: RoundTasks, round: int, block: int, before: Result, data: Result) -> Key:
        """Map a block from an outcome; the key of its result."""
        return tasks.add("map", round, block, mapping.map_and_persist, before, data, block, calls.elsewhere)

    def score(self, tasks: RoundTasks, round: int, block: int, after: Result, data: Result) -> Key:
        """Score an outcome on the held-out examples of a block; the key of the tallies."""
        return tasks.add("score", round, block, committing.score_outcome, after, data)

    def replay(self, tasks: RoundTasks, round: int, block: int, data: Result) -> Key:
        """Map a block again, and compare; the key of its result."""
        return tasks.add("map", round, block, replaying.replay_block, round, data, block)


class ThroughDask:
    """Tensors pass through Dask: what maps a block is given what it needs, and others store what it gives."""

    def map(self, tasks: RoundTasks, round: int, block: int, before: Result, data: Result) -> Key:
        """Map a block from an outcome; the key of its result."""
        carries = tasks.job.work.algorithm.map.carry
        carry: Any = tasks.add("carry", round, block, apart.read_carries, before, block) if carries else {}
        sent = self._sent(tasks, round, block, before, round - 1)
        mapped = tasks.add("map", round, block, apart.map_apart, *sent, carry, data)
        return tasks.add("persist", round, block, apart.persist_apart, round, mapped, block)

    def score(self, tasks: RoundTasks, round: int, block: int, after: Result, data: Result) -> Key:
        """Score an outcome on the held-out examples of a block; the key of the tallies."""
        owned = own_slots(tasks.job.work.algorithm.map.carry)
        own: Any = tasks.add("own", round, block, apart.read_own, after, block) if owned else None
        sent = self._sent(tasks, round, block, after, round)
        return tasks.add("score", round, block, apart.score_apart, *sent, own, data)

    def replay(self, tasks: RoundTasks, round: int, block: int, data: Result) -> Key:
        """Map a block again, and compare; the key of its result."""
        inputs = tasks.add("inputs", round, block, replaying.read_inputs, round, block)
        mapped = tasks.add("map", round, block, replaying.map_inputs, round, inputs, data)
        return tasks.add("compare", round, block, replaying.compare_block, round, mapped, block)

    def _sent(self, tasks: RoundTasks, round: int, block: int, outcome: Result, number: int) -> tuple[Any, Any]:
        """The state of round `number`, as a block of a `round` is mapped or scored with it, and what is frozen.

        Each place gets them once, and its workers from each other.
        """
        job, pool = tasks.job, tasks.pool
        sent = tasks.add("send", number, 0, apart.state_to_map, outcome)
        place = pool.setting.placement.resource(job.plan_of(round).members(block)[0])
        frozen: Any = pool.frozen(job, place) if job.work.objective.layout.frozen else {}
        if not place:
            return sent, frozen
        there = tasks.key("state", number, place)
        tasks.graph[there] = (calls.run_step, calls.itself, sent)
        return there, frozen
