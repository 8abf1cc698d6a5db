"""Rounds as Dask futures: map, reduce, score and commit as tasks on any cluster.

A window of rounds is one graph. Its first task reads the state from the store at the last commit and depends on no
earlier future, so a worker's death costs the window so far and no more. Rounds that are replayed depend on nothing
but the store, and are all worked on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from dask import annotate  # type: ignore[attr-defined]
from distributed import Client, Future

from storage.errors import ClusterError
from storage.rounds.commits import Commit
from tasks.clusters.workers import DEADLY, DeadlyWork, LostWork, finished, result, usable_workers
from tasks.evidence.replaying import fold_again, replay_block, replay_round
from tasks.evidence.results import RoundResult
from tasks.executors.on_worker import elsewhere, step, step_after, step_aside
from tasks.executors.parameter_server.distributed import Server
from tasks.executors.pool import PLACED, Key, Pool, Task
from tasks.persistence.committing import (
    commit_round,
    fold_round,
    load_and_keep,
    load_block,
    map_and_keep,
    read_outcome,
    reduce_round,
    score_outcome,
)
from tasks.rounds.job import Job
from tasks.rounds.timing import Notice, log_notice
from tasks.when import Asynchronous

T = TypeVar("T")

RESUBMISSIONS = 2
"""How often in a row work that Dask lost is submitted again before a run gives up."""

FAN_IN = 16
"""What so many blocks gave one task folds; of more, a tree of tasks, so that no worker receives them all."""


@dataclass(frozen=True)
class Course(Generic[T]):
    """How rounds are done by tasks: those of a window, and the kind of the task that gives what a round yields.

    A round that is `done` is there to `read`, whatever becomes of its task; `advice` is for one that is lost.
    """

    kind: str
    tasks: Callable[[Job, Sequence[int]], dict[Key, Any]]
    advice: Callable[[int], str]
    done: Callable[[int], bool] = lambda round: False
    read: Callable[[int], T] | None = None


class GraphExecutor:
    """Runs rounds on the workers of a Dask client; see `open_executor` for `worker_timeout`."""

    def __init__(
        self,
        client: Client,
        worker_timeout: float = 60.0,
        notice: Notice = log_notice,
        fan_in: int = FAN_IN,
    ) -> None:
        self.client = client
        self.fan_in = fan_in
        self.pool = Pool(client, worker_timeout, notice)
        self._server: Server | None = None

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """What a function gives on each worker, by address; one that comes later is not asked."""
        for _ in range(RESUBMISSIONS + 1):
            given = self._prepared(partial(self._ask_each, function))
            if given.keys() <= set(usable_workers(self.client)):
                return given  # else another has answered for one that is gone
        raise ClusterError("workers come and go while each is asked; start again once they stay")

    def _ask_each(self, function: Callable[[], T]) -> dict[str, T]:
        workers = usable_workers(self.client)
        futures = [
            self.client.submit(step, function, workers=[worker], allow_other_workers=True, pure=False)
            for worker in workers
        ]
        return dict(zip(workers, map(self._result, futures), strict=True))

    def gather(self, function: Callable[[int], T], partitions: range) -> list[T]:
        """What a function gives for each partition, called on the workers."""
        return self._prepared(partial(self._ask_of_each, function, partitions))

    def _ask_of_each(self, function: Callable[[int], T], partitions: range) -> list[T]:
        futures = self.client.map(partial(step, function), partitions, pure=False)
        return list(map(self._result, futures))

    def _result(self, future: Future[Any]) -> Any:
        return result(self.client, future, look=self.pool.look)

    def _prepared(self, ask: Callable[[], T], left: int = RESUBMISSIONS) -> T:
        """What is asked of workers before round 1; what Dask loses is asked again of those that are there."""
        try:
            given = ask()
        except LostWork as error:
            # Of a task whose worker has died, Dask may say only that it forgot it.
            reason = DEADLY if self.pool.look() and not isinstance(error, DeadlyWork) else error
            if isinstance(error, DeadlyWork) or not left:
                raise ClusterError(f"work before round 1 was lost ({reason}); start again") from error
            return self._prepared(ask, left - 1)
        self.pool.look()
        return given

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run a window of rounds, giving each commit as it is made; ends early where a commit says stop."""
        job = job.run_by("graph")
        if isinstance(job.work.algorithm.when, Asynchronous):
            yield from self._served(job, first, last)
            return
        store = job.attempt.open()
        course = Course("commit", self._window, _resume_advice, store.log.has, store.log.read)
        for commit in self._through(course, job, range(first, last + 1)):
            yield commit
            if commit.stop:
                return

    def _served(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Asynchronous rounds. What Dask loses is done again from the last commit, with what was in hand then."""
        lost = 0
        while first <= last:
            server = self._server_at(job, first - 1)
            try:
                for commit in self._until_lost(server, last):
                    first, lost = commit.round + 1, 0
                    for partition in commit.updates:
                        del self.pool.deaths[partition]
                    if commit.stop or first > job.attempt.rounds:
                        self._server = None  # and what is in hand is dropped
                    yield commit
                    if commit.stop:
                        return
            except LostWork as error:
                self.pool.look(server.job)
                # Where others go on between its deaths, a deadly partition is known by their number.
                lost = max(lost + 1, max(self.pool.deaths.values(), default=0))
                self._begin_again(first, lost, error, _resume_advice)
                self._server = None
        if self.pool.look(job):  # a window may end before anybody has looked
            self._server = None

    def _until_lost(self, server: Server, last: int) -> Iterator[Commit]:
        """The rounds of a server; where work is lost, those first that are committed all the same."""
        try:
            yield from server.rounds(last)
        except LostWork:
            with suppress(LostWork):  # rounds that are being committed keep their order
                server.settle()
            log, done = server.job.attempt.open().log, server.committed
            yield from (log.read(round) for round in range(done + 1, last + 1) if log.has(round))
            raise

    def _server_at(self, job: Job, round: int) -> Server:
        """The server of a run after a committed round, which this executor may have going already."""
        made = self._server
        if made is None or made.job.attempt.token != job.attempt.token or made.committed != round:
            made = self._server = Server(self.pool, job, round)
        return made

    def end(self) -> None:
        """Let go of the turns of a server, if there is one."""
        self._server = None

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds all at once, giving the result of each in this order; nothing is written."""
        course: Course[RoundResult] = Course("result", self._replays, lambda round: "the run is as it was")
        yield from self._through(course, job, rounds)

    def _through(self, course: Course[T], job: Job, rounds: Sequence[int]) -> Iterator[T]:
        """What each round yields.

        The store is the truth: what Dask loses is submitted again from the first round that is not done, one
        partition at a time, so that a deadly one can be named.
        """
        todo, lost = list(rounds), 0
        while todo:
            spread = self.pool.spread(job, one_by_one=lost > 0)
            try:
                for done in self._submit(course, spread, todo[:1] if lost else todo.copy()):
                    yield done
                    del todo[0]
                    lost = 0
            except LostWork as error:
                self.pool.look(spread)
                lost += 1
                self._begin_again(todo[0], lost, error, course.advice)
            except ClusterError as error:
                raise ClusterError(f"{self.pool.suspects()}{error}") from error

    def _begin_again(self, round: int, lost: int, error: LostWork, advice: Callable[[int], str]) -> None:
        """Submit anew after work was lost so many times in a row; raises `ClusterError` once that is too often."""
        if lost > RESUBMISSIONS or (lost > 1 and isinstance(error, DeadlyWork)):
            line = f"round {round} was lost {lost} times ({self.pool.suspects()}{error})"
            raise ClusterError(f"{line}; {advice(round)}") from error
        self.pool.forget()

    def _submit(self, course: Course[T], job: Job, rounds: Sequence[int]) -> Iterator[T]:
        self.pool.deaths.clear()
        # What these functions refer to is sent to the scheduler, which imports nothing of ours: no `Task`.
        home = self.pool.homes(job.plan.blocks)
        with annotate(
            workers=lambda key: [home[key[3]]] if key[0] in PLACED else [],
            allow_other_workers=True,
            priority=lambda key: 0 if key[0] in PLACED else 1,
        ):
            last = [self.pool.key(job, course.kind, round) for round in rounds]
            futures = self.client.get(course.tasks(job, rounds), last, sync=False)
        for round, future in zip(rounds, futures, strict=True):
            done = partial(course.done, round)
            finished(self.client, future, unless=done, look=partial(self.pool.look, job))
            yield course.read(round) if course.read and done() else result(self.client, future)
            future.release()
        self.pool.look(job)

    def _window(self, job: Job, rounds: Sequence[int]) -> dict[Key, Any]:
        shared = self.pool.shared(job)
        before = self.pool.key(job, "read", rounds[0] - 1)
        graph: dict[Key, Any] = {before: (step, read_outcome, shared, rounds[0] - 1)}
        previous: Key | None = None
        for round in rounds:
            graph |= self._round(job, shared, round, before, previous, round == rounds[-1])
            before, previous = self.pool.key(job, "reduce", round), self.pool.key(job, "commit", round)
        return graph

    def _round(
        self, job: Job, shared: Future[Any], round: int, before: Key, previous: Key | None, closing: bool
    ) -> dict[Key, Any]:
        """The tasks of one round: maps, folds, the reduce, scores, the commit."""
        graph: dict[Key, Any] = {}
        after = self.pool.key(job, "reduce", round)
        mapped: list[Key] = []
        scored: list[Key] = []
        for block, examples in enumerate(self.pool.data(job, round, load_and_keep)):
            called = _called(job, mapped)
            mapped.append(self.pool.key(job, "map", round, block))
            graph[mapped[-1]] = (*called, map_and_keep, shared, before, examples, block, elsewhere)
            if job.attempt.scored(round):
                scored.append(self.pool.key(job, "score", round, block))
                graph[scored[-1]] = (step, score_outcome, shared, after, examples)
        graph[after] = (step, reduce_round, shared, before, self._folded(graph, job, shared, fold_round, mapped))
        commit = (step_aside, commit_round, shared, after, scored, previous, closing)
        graph[self.pool.key(job, "commit", round)] = commit
        return graph

    def _replays(self, job: Job, rounds: Sequence[int]) -> dict[Key, Any]:
        """The tasks of rounds that are replayed: maps, folds, and what becomes of each round."""
        shared = self.pool.shared(job)
        graph: dict[Key, Any] = {}
        for round in rounds:
            mapped: list[Key] = []
            for block, examples in enumerate(self.pool.data(job, round, load_block)):
                called = _called(job, mapped)
                mapped.append(self.pool.key(job, "map", round, block))
                graph[mapped[-1]] = (*called, replay_block, shared, round, examples, block)
            folded = self._folded(graph, job, shared, fold_again, mapped)
            graph[self.pool.key(job, "result", round)] = (step, replay_round, shared, round, folded)
        return graph

    def _folded(
        self, graph: dict[Key, Any], job: Job, shared: Future[Any], fold: Callable[..., Any], mapped: list[Key]
    ) -> list[Key]:
        """What the reduce of a round is given: what its blocks gave, of many folded by tasks on the way."""
        rules, round, number = job.work.algorithm, Task(*mapped[0]).round, 0
        if rules.reduce.gathers or isinstance(rules.when, Asynchronous):
            return mapped
        for groups in job.plan.folds(self.fan_in):
            results, mapped = mapped, []
            for group in groups:
                mapped.append(self.pool.key(job, "fold", round, number))
                graph[mapped[-1]] = (step, fold, shared, round, results[group.start : group.stop])
                number += 1
        return mapped


def _resume_advice(round: int) -> str:
    return f"rounds to {round - 1} are kept, `roundweave resume` goes on"


def _called(job: Job, before: Sequence[Key]) -> tuple[Any, ...]:
    """How a map is called: where they go one by one, once the one before it is done."""
    return (step_after, before[-1]) if job.plan.one_by_one and before else (step,)
