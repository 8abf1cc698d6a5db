"""Asynchronous rounds as Dask futures: partitions take turns, and the server's state is a chain of tasks.

The client decides only the order, as updates arrive; no tensor passes through it. What has arrived while the
server was busy is taken in by one task, and whoever landed then fetches the state after it. Rounds are committed
several at a time, beside what else goes on, by serving them again: what is stored is never in the server's way.
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
"""Tasks of short turns that a worker has at once: one that it is at, and one to go on with."""

UNKEPT = 64
"""So many rounds may be taken in and not be committed yet; each holds its updates in the workers' memory."""


class Server:
    """An asynchronous run on a cluster, from a committed round on, until work is lost or it ends.

    Turns go on between windows. With each the chain of the server's states begins anew from the store, so that
    lineage ends there.
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
        self._turns: dict[int, Turn] = {}
        self._landed: dict[int, Turn] = {}
        self._ready: dict[int, Turn] = {}
        self._unkept: list[Taken] = []
        self._seconds: dict[int, float] = {}
        self._begun = 0
        self._idleness = Idleness(pool.client)
        self._looked = time.monotonic()

    def rounds(self, last: int) -> Iterator[Commit]:
        """Take in rounds up to the last, giving each commit as it is made; raises `LostWork`."""
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
        """Let go of turns, and wait until what is being committed is; raises `LostWork` where that is lost."""
        for begun in self._turns.values():
            begun.pushed.release()  # which its callback holds, too, until it is done
        if self.committing is not None:
            finished(self.pool.client, self.committing)

    def _start(self) -> None:
        """Read the state that a window begins with, and what partitions have in item, where they begin, too."""
        store, tasks = self.job.attempt.open(), Tasks()
        self._ready, self._server = {}, self._fastest()
        commit = store.log.read(self.round)
        server = standing(commit.server, self.job.plan.partitions)
        in_flight = {p: item for p, item in server.in_flight.items() if p not in self._turns}
        bases = {
            row: self._read(tasks, row) for row in {self.round, *(item.version for item in in_flight.values())}
        }
        begins = [Begin(p, h.push, bases[h.version], commit.carry_from.get(p)) for p, h in in_flight.items()]
        self._submit(tasks, bases[self.round], self._begin(tasks, begins))

    def _fastest(self) -> str:
        """The worker for the server: the one whose turns are the shortest."""
        seconds: dict[str, list[float]] = {home: [] for home in self._homes}
        for partition, taken in self._seconds.items():
            seconds[self._homes[self._block[partition]]].append(taken)
        return min(seconds, key=lambda home: statistics.median(seconds[home] or [0.0]))

    def _read(self, tasks: Tasks, row: int) -> Base:
        """A committed row, from the store."""
        return Base(row, tasks.add(self._key("read", row), self._server, step, read_outcome, self._shared, row))

    def _begin(self, tasks: Tasks, begins: Sequence[Begin]) -> dict[int, Turn]:
        """Let partitions begin their turns; those of one worker together, where that spares time."""
        turns: dict[int, Turn] = {}
        for group in grouped(begins, self._block, self._seconds):
            pushed = self._begin_together(tasks, group)
            for place, begin in enumerate(group):
                turns[begin.partition] = Turn(begin.number, begin.base, pushed, place)
        return turns

    def _begin_together(self, tasks: Tasks, group: Sequence[Begin]) -> Key:
        first, block = group[0], self._block[group[0].partition]
        self._begun += 1
        key = self._key("turn", first.number, first.partition)
        if len(group) > 1:
            key = self._key("turns", self._begun, block)
        arguments = (self._shared, self._data[block], [begin.due for begin in group], elsewhere)
        return tasks.add(key, self._homes[block], step, make_pushes, *arguments)

    def _take_in(self, last: int) -> bool:
        """Take in what has arrived, and let who landed begin the next turn; whether any round was closed."""
        closed: list[Closed] = []
        landed: dict[int, Turn] = {}
        while self._arrived and self.round + len(closed) < last and len(self._unkept) + len(closed) < UNKEPT:
            partition = self._arrived.popleft()
            if not self._ledger.takes(partition):
                self._waiting.append(partition)
                continue
            taken_in = self._ledger.arrive(partition)
            landed[partition] = self._landed[partition] = self._turns.pop(partition)
            if taken_in:
                turns = {p: self._landed.pop(p) for p in taken_in.partitions}
                closed.append(Closed(taken_in, turns))
                self._arrived.extendleft(reversed(self._waiting))
                self._waiting = []
                if self.job.attempt.scored(self.round + len(closed)):
                    break
        self._ready |= landed
        # Who has waited fetches the state after a round that closes now: so it is recorded.
        begin = {p: turn for p, turn in self._ready.items() if (closed or p in landed) and self._may_begin(p)}
        if closed or begin:
            # Who has landed in the open round goes on from the state before it.
            self._serve(fetching_last(closed, begin.keys() - self._landed.keys()), begin)
        return bool(closed)

    def _may_begin(self, partition: int) -> bool:
        """Whether a turn begins at once, or waits for others of its worker, which has enough to do meanwhile."""
        if self.when.buffer > 1 or not is_short(self._seconds, partition):
            return True
        block = self._block[partition]
        under_way = {turn.pushed for p, turn in self._turns.items() if self._block[p] == block}
        return len(under_way) < AHEAD

    def _serve(self, closed: Sequence[Closed], begin: dict[int, Turn]) -> None:
        """Submit what the server does with rounds, and the turns after those of who has landed and begins now."""
        tasks, row, base = Tasks(), self.round + len(closed), self._head
        scores: list[Result] = []
        if closed:
            base = Base(row, self._serve_rounds(tasks, row, closed))
            scores = self._score(tasks, base) if self.job.attempt.scored(row) else []
        carries = bool(self.job.work.algorithm.map.carry)
        begun = self._begin(tasks, [next_turn(p, done, self.when, base, carries) for p, done in begin.items()])
        self._ready = {p: turn for p, turn in self._ready.items() if p not in begin}
        for number, each in enumerate(closed, self.round + 1):
            self._unkept.append(Taken(number, each.taken_in, each.pushed, scores if number == row else []))
        self.round = row
        self._submit(tasks, base, begun)

    def _serve_rounds(self, tasks: Tasks, row: int, closed: Sequence[Closed]) -> Key:
        rounds_taken, pushed = [each.taken_in for each in closed], [each.pushed for each in closed]
        arguments = (self._shared, self._head.outcome, rounds_taken, pushed)
        return tasks.add(self._key("serve", row), self._server, step, serve_rounds, *arguments)

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
        """Submit tasks, and have futures in the place of their keys from now on."""
        futures = tasks.submit(self.pool.client)

        def known(result: Result) -> Result:
            return futures.get(result, result) if isinstance(result, tuple) else result

        def base(of: Base) -> Base:
            return Base(of.version, known(of.outcome))

        self._head = base(head)
        for partition, begins in begun.items():
            pushed = known(begins.pushed)
            self._turns[partition] = Turn(begins.number, base(begins.base), pushed, begins.place)
            pushed.add_done_callback(partial(self._tell, partition))
        self._unkept = [replace(taken, scores=list(map(known, taken.scores))) for taken in self._unkept]

    def _commit_next(self, last: int) -> None:
        """Have what was taken in committed, where nothing is being committed."""
        if self.committing is not None or not self._unkept:
            return
        # Who waits for scores lets nobody wait who came before.
        scored = next((at for at, taken in enumerate(self._unkept) if at and taken.scores), len(self._unkept))
        batch, self._unkept = self._unkept[:scored], self._unkept[scored:]
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
        self.committing.add_done_callback(partial(self._tell, None))

    def _tell(self, arrived: int | None, future: Future[Any]) -> None:
        """Called by Dask when an update has arrived, or rounds are committed."""
        self._done.put((future, arrived))

    def _wait(self) -> list[Commit]:
        """Wait until something is done; what was committed. Raises `LostWork` once a worker is gone."""
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
