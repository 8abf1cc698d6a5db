"""A parameter server whose pushes arrive when workers are ready: which make up a round, and who maps what next."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from roundweave.tasks.algorithms.when import ServerRound
from roundweave.tasks.executors.parameter_server.server import ParameterServer, Served, Submit
from roundweave.tasks.rounds.asynchronous.orders import Ledger, next_push
from roundweave.tasks.rounds.asynchronous.steps import drawing
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import Again
from roundweave.tasks.rounds.persistence.pushes import Ref

AHEAD = 2
"""How many tasks of short maps a worker is given at once: one to run, and one to go on with."""

MOST_UNCOMMITTED = 64
"""How many rounds may wait to be committed. Their states and updates stay in memory."""


class ArrivingServer(ABC):
    """An asynchronous run from a committed round on, in the order in which pushes arrive.

    `most` rounds may wait in `_uncommitted`.
    """

    most = MOST_UNCOMMITTED

    def __init__(self, job: Job, round: int, submit: Submit, again: Again = operator.call) -> None:
        self.job = job
        self._server = ParameterServer(job, round, submit, again)
        self._ledger = Ledger(self._server.when, round, self._server.in_flight, drawing(job.work))
        self._blocks: dict[int, int] = {}  # of each partition that computes
        self._arrived: deque[int] = deque()
        self._waiting: list[int] = []  # their push waits, as the open round has one of theirs
        self._open: dict[int, Ref] = {}  # the pushes of the open round
        self._idle: dict[int, None] = {}  # partitions that are to map next and have not begun, in order
        self._uncommitted: list[Served] = []

    @abstractmethod
    def _begin(self, partitions: Iterable[int]) -> None:
        """Have the maps of partitions begin."""

    def _is_short(self, partition: int) -> bool:
        """Whether the maps of a partition are known to be short."""
        return True

    def _go_on(self) -> set[int]:
        """Go on from the last committed round. Returns the partitions in flight whose maps have not begun."""
        self._server.read_committed(self._ledger.arrived)
        for place, partition in enumerate(sorted(self._server.in_flight)):
            self._blocks.setdefault(partition, place * self.job.blocks // len(self._server.in_flight))
        self._idle = {}
        return self._server.in_flight.keys() - self._server.maps.keys()

    def _take_in(self, last: int) -> bool:
        """Put the pushes that have arrived into rounds, and let their partitions go on.

        Returns whether a round was closed.
        """
        closed: list[ServerRound] = []
        pushed: list[list[Ref]] = []
        taken: set[int] = set()
        uncommitted = sum(len(each.pushed) for each in self._uncommitted)
        room = min(last - self._server.round, self.most - uncommitted)
        while self._arrived and len(closed) < room:
            partition = self._arrived.popleft()
            if not self._ledger.takes(partition):
                self._waiting.append(partition)
                continue
            self._open[partition] = self._server.take(partition)
            round, following = self._ledger.arrive(partition), self._ledger.following
            self._blocks[following] = self._blocks.pop(partition)
            taken.add(following)
            self._idle[following] = None
            if round:
                closed.append(round)
                pushed.append([self._open.pop(each) for each in round.partitions])
                self._arrived.extendleft(reversed(self._waiting))
                self._waiting = []
                if self.job.attempt.scored(self._server.round + len(closed)):
                    break
        # A partition that has waited begins only when a round closes: its commit records which state was fetched.
        begin = [p for p in self._idle if (closed or p in taken) and self._may_begin(p)]
        if closed:
            # Who goes on after a push in the round that is still open begins from the state before it.
            fetching = closed[-1].fetching.union(begin).difference(self._ledger.arrived.values())
            closed[-1] = replace(closed[-1], fetching=fetching)
            self._uncommitted.append(self._server.serve(closed, pushed))
        for partition in begin:
            del self._idle[partition]
            item = self._server.in_flight[partition]
            self._server.in_flight[partition] = next_push(self._server.when, item, self._server.round)
        self._begin(begin)
        return bool(closed)

    def _may_begin(self, partition: int) -> bool:
        """Whether a partition's next map begins at once.

        A short map waits while its worker has `AHEAD` tasks of such maps, so that it can join others in one task.
        """
        if self._server.when.buffer > 1 or not self._is_short(partition):
            return True
        maps, blocks = self._server.maps.items(), self._blocks
        under_way = {id(task) for p, (task, _) in maps if blocks[p] == blocks[partition]}
        return len(under_way) < AHEAD
