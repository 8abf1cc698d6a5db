"""A parameter server among ranks: the first one has the state, and the others map what partitions push.

The first rank applies one push after the other as they arrive, while another thread of it commits rounds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from queue import Empty
from typing import Any

from roundweave.flows.plugins.parameter_server import steps
from roundweave.flows.plugins.parameter_server.server import ArrivingServer, Result
from roundweave.storage.values.state import Update
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.process_group.channels import Broken
from roundweave.tasks.process_group.group import LOOK_SECONDS
from roundweave.tasks.process_group.peers import Peers
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.apart import read_frozen, score_apart, state_to_map
from roundweave.tasks.rounds.persistence.committing import Computed
from roundweave.tasks.rounds.persistence.mapping import Again
from roundweave.tasks.rounds.steps import Outcome


def rounds_of_server(
    job: Job, round: int, rank: int, peers: Peers, data: BlockExamples, halted: Callable[[], bool], again: Again
) -> Iterator[Computed]:
    """Yield each round after a committed `round` on the first rank. The others map meanwhile, and yield none.

    `data` are the examples of this rank's block. If a map raises, `again` runs it once more.
    """
    if rank == 0:
        yield from RankServer(job, round, peers).rounds(halted)
        return
    frozen = read_frozen(job)
    while (asked := peers.received.get()[1]) is not None and not peers.gone:
        state, push = asked
        if push is None:
            peers.send(0, score_apart(job, state, frozen, None, data))
        else:
            partition, in_flight, before = push
            due = partition, in_flight, [Outcome(replace(state, frozen=frozen))], before.carry
            peers.send(0, steps.make_pushes(job, data, [due], again))


class RankServer(ArrivingServer):
    """An asynchronous run by ranks from a committed round on. Of the `peers`, rank b + 1 maps block b."""

    def __init__(self, job: Job, round: int, peers: Peers) -> None:
        super().__init__(job, round, self._submit)
        self._peers = peers
        self._taken: Outcome | None = None
        self._asked: dict[int, deque[tuple[list[Any], tuple[int, ...]]]] = defaultdict(deque)

    def rounds(self, halted: Callable[[], bool]) -> Iterator[Computed]:
        """Yield each round, with its scores, until `halted` or the run ends. Raises `Broken` if a rank is gone."""
        last = self.job.attempt.rounds
        self._server.data = [None] * self.job.blocks  # the other ranks have the examples
        self._begin(self._go_on())
        while (self._server.round < last or self._uncommitted) and not halted():
            while self._take_in(last):
                pass
            while self._uncommitted and self._scored(self._uncommitted[0]):
                served = self._uncommitted.pop(0)
                for computed in steps.computed_rounds(served):
                    yield computed
                    self._settle(computed.outcome)
            with suppress(Empty):
                self._receive(*self._peers.received.get(timeout=LOOK_SECONDS))

    def _settle(self, taken: Outcome) -> None:
        """Forget what partitions carried that sit out since the round before, which is committed by now.

        A committer that has `taken` a round has committed the one before.
        """
        committed, self._taken = self._taken, taken
        if committed is not None and committed.server is not None:
            self._server.carry_from = committed.carry_from
            self._server.settle({*self._ledger.arrived, *committed.server.in_flight})

    def _submit(self, kind: str, number: int, at: Any, function: Callable[..., Any], *arguments: Any) -> Result:
        """Run a task here; maps and scores by the rank that has the examples, whose answer is filled in later."""
        if kind not in ("maps", "score"):
            return function(self.job, *arguments)
        if kind == "score":
            block, version, push, partitions = at, arguments[0], None, ()
        else:
            _, [(partition, in_flight, version, before)], _ = arguments
            carry = before if isinstance(before, Mapping) else steps.at(before).carry
            block, push, partitions = self._blocks[partition], (partition, in_flight, Update({}, carry=carry)), at
        answer: list[Any] = []
        self._asked[block + 1].append((answer, partitions))
        self._peers.send(block + 1, (state_to_map(self.job, version[-1]), push))
        return answer

    def _receive(self, rank: int, value: list[Any] | None) -> None:
        if value is None:
            raise Broken(f"rank {rank} is gone")
        answer, partitions = self._asked[rank].popleft()
        answer += value
        self._arrived += partitions

    def _scored(self, served: steps.Served) -> bool:
        """Whether the scores of some rounds are there, if they have any."""
        awaited = {id(answer) for asked in self._asked.values() for answer, _ in asked}
        return awaited.isdisjoint(map(id, served.scores))
