"""Asynchronous rounds as Dask futures: maps push to a parameter server, whose states are a chain of tasks.

The client only decides in which order pushes are applied, as they arrive. No tensor passes through it. One task
applies all pushes that arrived while the server was busy; the partitions that pushed then fetch the state after
it. Another task commits several rounds at a time. It computes them again from the same pushes, so that the server
never waits for the store.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from distributed import Future

from storage.rounds.commits import Commit
from tasks.asynchronous.ledger import Ledger, standing
from tasks.asynchronous.steps import rules
from tasks.clusters.workers import LOOK_SECONDS, Idleness, LostWork, finished, result
from tasks.executors.on_worker import elsewhere, step, step_aside
from tasks.executors.parameter_server.submitting import (
    Base,
    Begin,
    Closed,
    Result,
    Taken,
    Tasks,
    Turn,
    fetching_last,
    grouped,
    is_short,
    next_turn,
)
from tasks.executors.pool import Key, Pool
from tasks.persistence.committing import load_and_keep, read_outcome, score_outcome
from tasks.persistence.pushes import commit_server_rounds, make_pushes, serve_rounds
from tasks.rounds.job import Job

AHEAD = 2
"""How many tasks of short maps a worker is given at once: one to run, and one to go on with."""

UNKEPT = 64
"""How many rounds may wait to be committed. The updates of each of them stay in the workers' memory."""


class Server:
    """An asynchronous run on a cluster, from a committed round on, until work is lost or the run ends.

    Maps go on between windows of rounds. Each window begins a new chain of states, read from the store, so that
    what Dask has to compute again after a loss does not reach back further.
    """

    def __init__(self, pool: Pool, job: Job, round: int) -> None:
        self.pool = pool
        self.job = pool.spread(job)
        self.when = rules(job.work)
        self.round = self.committed = round
        self.committing: Future[Any] | None = None
        self._homes = pool.homes(self.job.plan.blocks)
        self._block = {p: block for block in range(self.job.plan.blocks) for p in self.job.plan.span(block)}
        self._ledger = Ledger(self.when)
        self._done: SimpleQueue[tuple[Future[Any], int | None]] = SimpleQueue()
        self._arrived: deque[int] = deque()
        self._waiting: list[int] = []
        self._in_flight: dict[int, Turn] = {}
        self._pushed: dict[int, Turn] = {}
        self._ready: dict[int, Turn] = {}
        self._uncommitted: list[Taken] = []
        self._seconds: dict[int, float] = {}
        self._groups_begun = 0
        self._idleness = Idleness(pool.client)
        self._looked = time.monotonic()

    def rounds(self, last: int) -> Iterator[Commit]:
        """Serve the rounds up to `last`, and yield each commit as it is made. Raises `LostWork`."""
        self._shared = self.pool.shared(self.job)
        self._data = self.pool.data(self.job, self.round + 1, load_and_keep)
        self._start()
        while self.committed < last:
            while self._take_in(last):
                pass
            self._commit_next(last)
            for commit in self._wait():
                self.committed = commit.round
                yield commit
                if commit.stop:
                    return

    def settle(self) -> None:
        """Drop the pushes in flight, and wait for the commits under way. Raises `LostWork` if these are lost."""
        for push in self._in_flight.values():
            push.pushed.release()  # its callback holds it, too, until it is done
        if self.committing is not None:
            finished(self.pool.client, self.committing)

    def _start(self) -> None:
        """Submit the tasks that begin a window.

        They read the last committed state, and map the partitions that have no map under way, each from the
        version that it had fetched.
        """
        store, tasks = self.job.attempt.open(), Tasks()
        self._ready, self._server = {}, self._fastest()
        commit = store.log.read(self.round)
        server = standing(commit.server, self.job.plan.partitions)
        in_flight = {p: item for p, item in server.in_flight.items() if p not in self._in_flight}
        versions = {self.round, *(item.version for item in in_flight.values())}
        bases = {version: self._read(tasks, version) for version in versions}
        begins = [
            Begin(p, item.push, bases[item.version], commit.carry_from.get(p)) for p, item in in_flight.items()
        ]
        self._submit(tasks, bases[self.round], self._begin(tasks, begins))

    def _fastest(self) -> str:
        """The worker for the server's tasks: the one whose maps have the lowest median of seconds."""
        seconds: dict[str, list[float]] = {home: [] for home in self._homes}
        for partition, took in self._seconds.items():
            seconds[self._homes[self._block[partition]]].append(took)
        return min(seconds, key=lambda home: statistics.median(seconds[home] or [0.0]))

    def _read(self, tasks: Tasks, version: int) -> Base:
        """Add the task that reads a committed round from the store."""
        key = self._key("read", version)
        return Base(version, tasks.add(key, self._server, step, read_outcome, self._shared, version))

    def _begin(self, tasks: Tasks, begins: Sequence[Begin]) -> dict[int, Turn]:
        """Add the tasks of maps that begin, and return the pushes in flight by partition.

        Short maps of one block become one task.
        """
        pushes: dict[int, Turn] = {}
        for group in grouped(begins, self._block, self._seconds):
            pushed = self._begin_together(tasks, group)
            for place, begin in enumerate(group):
                pushes[begin.partition] = Turn(begin.number, begin.base, pushed, place)
        return pushes

    def _begin_together(self, tasks: Tasks, group: Sequence[Begin]) -> Key:
        first, block = group[0], self._block[group[0].partition]
        self._groups_begun += 1
        key = self._key("turn", first.number, first.partition)
        if len(group) > 1:
            key = self._key("turns", self._groups_begun, block)
        arguments = (self._shared, self._data[block], [begin.due for begin in group], elsewhere)
        return tasks.add(key, self._homes[block], step, make_pushes, *arguments)

    def _take_in(self, last: int) -> bool:
        """Put the pushes that have arrived into rounds, and let their partitions go on.

        Returns whether a round was closed.
        """
        closed: list[Closed] = []
        pushed: dict[int, Turn] = {}
        while self._arrived and self.round + len(closed) < last and len(self._uncommitted) + len(closed) < UNKEPT:
            partition = self._arrived.popleft()
            if not self._ledger.takes(partition):
                self._waiting.append(partition)
                continue
            taken_in = self._ledger.arrive(partition)
            pushed[partition] = self._pushed[partition] = self._in_flight.pop(partition)
            if taken_in:
                closed.append(Closed(taken_in, {p: self._pushed.pop(p) for p in taken_in.partitions}))
                self._arrived.extendleft(reversed(self._waiting))
                self._waiting = []
                if self.job.attempt.scored(self.round + len(closed)):
                    break
        self._ready |= pushed
        # A partition that has waited begins only when a round closes: its commit records which state was fetched.
        begin = {p: push for p, push in self._ready.items() if (closed or p in pushed) and self._may_begin(p)}
        if closed or begin:
            # A partition that pushed in the round that is still open goes on from the state before it.
            self._serve(fetching_last(closed, begin.keys() - self._pushed.keys()), begin)
        return bool(closed)

    def _may_begin(self, partition: int) -> bool:
        """Whether a partition's next map begins at once.

        A short map waits while its worker has `AHEAD` tasks of such maps, so that it can join others in one task.
        """
        if self.when.buffer > 1 or not is_short(self._seconds, partition):
            return True
        block = self._block[partition]
        under_way = {push.pushed for p, push in self._in_flight.items() if self._block[p] == block}
        return len(under_way) < AHEAD

    def _serve(self, closed: Sequence[Closed], begin: dict[int, Turn]) -> None:
        """Submit the task that applies the closed rounds, and the next maps of the partitions that begin.

        `begin` has the last push of each of these partitions.
        """
        tasks, last, base = Tasks(), self.round + len(closed), self._head
        scores: list[Result] = []
        if closed:
            base = Base(last, self._serve_rounds(tasks, last, closed))
            scores = self._score(tasks, base) if self.job.attempt.scored(last) else []
        carries = bool(self.job.work.algorithm.map.carry)
        begun = self._begin(tasks, [next_turn(p, done, self.when, base, carries) for p, done in begin.items()])
        self._ready = {p: push for p, push in self._ready.items() if p not in begin}
        for number, each in enumerate(closed, self.round + 1):
            self._uncommitted.append(Taken(number, each.taken_in, each.pushed, scores if number == last else []))
        self.round = last
        self._submit(tasks, base, begun)

    def _serve_rounds(self, tasks: Tasks, last: int, closed: Sequence[Closed]) -> Key:
        rounds_taken, pushed = [each.taken_in for each in closed], [each.pushed for each in closed]
        arguments = (self._shared, self._head.outcome, rounds_taken, pushed)
        return tasks.add(self._key("serve", last), self._server, step, serve_rounds, *arguments)

    def _score(self, tasks: Tasks, base: Base) -> list[Result]:
        return [
            tasks.add(
                self._key("score", base.version, block),
                self._homes[block],
                *(step, score_outcome, self._shared, base.outcome, examples),
            )
            for block, examples in enumerate(self._data)
        ]

    def _submit(self, tasks: Tasks, head: Base, begun: dict[int, Turn]) -> None:
        """Submit tasks, and put their futures where their keys were.

        `head` is the server's newest state; `begun` are the pushes whose maps are among the tasks, by partition.
        """
        futures = tasks.submit(self.pool.client)

        def known(result: Result) -> Result:
            return futures.get(result, result) if isinstance(result, tuple) else result

        def base(of: Base) -> Base:
            return Base(of.version, known(of.outcome))

        self._head = base(head)
        for partition, push in begun.items():
            pushed = known(push.pushed)
            self._in_flight[partition] = Turn(push.number, base(push.base), pushed, push.place)
            pushed.add_done_callback(partial(self._notify, partition))
        self._uncommitted = [replace(each, scores=list(map(known, each.scores))) for each in self._uncommitted]

    def _commit_next(self, last: int) -> None:
        """Submit a task that commits closed rounds, unless one is under way. `last` is the window's last round."""
        if self.committing is not None or not self._uncommitted:
            return
        # A round that waits for its scores begins a batch of its own, so that earlier rounds do not wait for it.
        scored = (at for at, each in enumerate(self._uncommitted) if at and each.scores)
        end = next(scored, len(self._uncommitted))
        batch, self._uncommitted = self._uncommitted[:end], self._uncommitted[end:]
        tasks, first = Tasks(), batch[0].round
        lists = ([t.taken_in for t in batch], [t.pushed for t in batch], [t.scores for t in batch])
        key = tasks.add(
            self._key("commit", first),
            self._server,
            step_aside,
            commit_server_rounds,
            self._shared,
            first,
            *lists,
            last,
        )
        self.committing = tasks.submit(self.pool.client)[key]
        self.committing.add_done_callback(partial(self._notify, None))

    def _notify(self, arrived: int | None, future: Future[Any]) -> None:
        """Called by Dask when the push of a partition has arrived, or, with None, when rounds are committed."""
        self._done.put((future, arrived))

    def _wait(self) -> list[Commit]:
        """Wait for pushes or commits, and return the commits. Raises `LostWork` once a worker is gone."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._look()
        commits: list[Commit] = []
        try:
            done = [self._done.get(timeout=LOOK_SECONDS)]
        except Empty:
            self._idleness.look()
            return commits
        while not self._done.empty():
            done.append(self._done.get())
        for future, arrived in done:
            if arrived is not None:
                finished(self.pool.client, future)
                self._arrived.append(arrived)
            else:
                commits, self.committing = result(self.pool.client, future), None
                self._seconds |= {p: update.seconds for commit in commits for p, update in commit.updates.items()}
        return commits

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self.pool.look(self.job):
            raise LostWork("a worker is gone")

    def _key(self, kind: str, round: int, block: int = 0) -> Key:
        return self.pool.key(self.job, kind, round, block)
