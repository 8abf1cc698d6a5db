"""The parameter server: what partitions have in flight, the versions that it began from, and the newest state.

Its tasks are submitted by a function. In this process they run at once, and pushes arrive in an order that is
given. Else they arrive when workers are ready: on Dask (see `on_dask`) results are futures, and among ranks (see
`among_ranks`) lists that are filled once a rank has answered.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roundweave.flows.plugins.parameter_server import orders, steps
from roundweave.flows.plugins.parameter_server.orders import Ledger, ServerRound
from roundweave.flows.plugins.parameter_server.steps import Ref, Served
from roundweave.storage.rounds.commits import InFlight
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import Again, read_carry

Result = Any
"""The result of a task: its value, or what stands for it until it is there."""


Submit = Callable[..., Result]
"""Runs a task: ``submit(kind, number, at, function, *arguments)`` calls a function with the job and arguments.

In these, results, also in lists, stand for their values. The task is named by `kind`, `number` and `at`: the block
that it is about, or the partitions that it maps, or None for a task of the server itself.
"""


AHEAD = 2
"""How many tasks of short maps a worker is given at once: one to run, and one to go on with."""

MOST_UNCOMMITTED = 64
"""How many rounds may wait to be committed. Their states and updates stay in memory."""


class ParameterServer:
    """A parameter server from a committed round on; `round` is the last that it has computed.

    `data` are the examples of each block. `maps` are the pushes whose map has begun and that it has not taken.
    `carry_from` is the round in which the store has what a partition carries whose last push is not at hand.
    If a map raises, `again` runs it once more.
    """

    def __init__(self, job: Job, round: int, submit: Submit, again: Again = operator.call) -> None:
        self.job = job
        self.again = again
        self.when = steps.rules(job.work)
        self.round = round
        self._submit = submit
        self.data: Sequence[Any] = ()
        self.maps: dict[int, Ref] = {}
        self.in_flight: dict[int, InFlight] = {}
        self._before: dict[int, Ref] = {}
        self.carry_from: Mapping[int, int] = {}
        self._versions: dict[int, Result] = {}

    def read_committed(self, arrived: Collection[int] = ()) -> None:
        """Go on from what the last round's commit says is in flight, except for maps that have begun.

        The pushes that have `arrived` in the round that is open are taken already.
        It reads the newest state from the store, so that lost work is not computed again from further back.
        """
        store = self.job.attempt.open()
        store.tensors.drop_updates(self.round + 1)  # which may be of another partition now
        commit = store.log.read(self.round)
        self.carry_from = commit.carry_from
        self.settle(arrived)
        for partition, item in steps.server_before(self.job.work, commit.server).in_flight.items():
            if partition not in self.maps and partition not in arrived:
                self.in_flight[partition] = item
                self._before.pop(partition, None)
        idle = self.in_flight.keys() - self.maps.keys()
        for version in {self.round, *(self.in_flight[partition].version for partition in idle)}:
            self._versions[version] = self._submit("read", version, None, steps.read_version, version)

    def settle(self, arrived: Collection[int] = ()) -> None:
        """Forget the committed pushes of partitions that sit out. The store has what they carry."""
        self._before = {p: ref for p, ref in self._before.items() if p in self.in_flight or p in arrived}

    def begin(self, partitions: Sequence[int], block: int = 0) -> Result:
        """Map what some partitions of one block have in flight, in one task."""
        needed = {self.round, *(item.version for item in self.in_flight.values())}
        self._versions = {version: self._versions[version] for version in needed}
        carry = {p: self._before.get(p) or self._stored_carry(p) for p in partitions}
        due = [[p, item := self.in_flight[p], self._versions[item.version], carry[p]] for p in partitions]
        number, given = self.in_flight[partitions[0]].push, (self.data[block], due, self.again)
        pushed = self._submit("maps", number, tuple(partitions), steps.make_pushes, *given)
        self.maps |= {partition: [pushed, place] for place, partition in enumerate(partitions)}
        return pushed

    def _stored_carry(self, partition: int) -> Result:
        """What the store has of what a partition carries, vectors (element,) by slot."""
        source, number = self.carry_from.get(partition), self.in_flight[partition].push
        if source is None:
            return {}
        return self._submit("carry", number, (partition,), read_carry, source, partition)

    def take(self, partition: int) -> Ref:
        """Take a push that has arrived. The partition's next map goes on with what it carries."""
        pushed = self.maps.pop(partition)
        if self.job.work.algorithm.map.carry:
            self._before[partition] = pushed
        return pushed

    def serve(self, rounds: Sequence[ServerRound], pushed: list[list[Ref]]) -> Served:
        """Compute the next rounds, which apply these pushes, in one task, and score the last if it is to be."""
        before, last = self._versions[self.round], self.round + len(rounds)
        submit = self._submit
        outcomes = after = submit("serve", last, None, steps.serve_rounds, before, rounds, pushed)
        if len(rounds) > 1:
            after = submit("version", last, None, steps.newest, outcomes)
        self._versions[last] = after
        scored = enumerate(self.data) if self.job.attempt.scored(last) else ()
        scores = [submit("score", last, block, steps.score_version, after, examples) for block, examples in scored]
        self.round = last
        return Served(outcomes, pushed, scores)


class ArrivingServer:
    """An asynchronous run from a committed round on, in the order in which pushes arrive."""

    def __init__(self, job: Job, round: int, submit: Submit, again: Again = operator.call) -> None:
        self.job = job
        self._server = ParameterServer(job, round, submit, again)
        self._ledger = Ledger(self._server.when, round, self._server.in_flight, steps.drawing(job.work))
        self._blocks: dict[int, int] = {}  # of each partition that computes
        self._arrived: deque[int] = deque()
        self._waiting: list[int] = []  # their push waits, as the open round has one of theirs
        self._open: dict[int, Ref] = {}  # the pushes of the open round
        self._idle: dict[int, None] = {}  # partitions that are to map next and have not begun, in order
        self._uncommitted: list[Served] = []

    def _begin(self, partitions: Iterable[int]) -> None:
        """Have the maps of partitions begin, each on its own."""
        for partition in partitions:
            self._server.begin([partition], self._blocks[partition])

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
        room = min(last - self._server.round, MOST_UNCOMMITTED - uncommitted)
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
            self._server.in_flight[partition] = orders.next_push(self._server.when, item, self._server.round)
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
