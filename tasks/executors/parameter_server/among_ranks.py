"""A parameter server among ranks: the first one has the state, and the others map what partitions push.

The first rank applies one push after the other as they arrive, and commits rounds in a thread beside that.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import takewhile
from typing import Any

from roundweave.storage.rounds.commits import Commit
from roundweave.storage.values.state import Update
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.executors.parameter_server.arrivals import ArrivingServer
from roundweave.tasks.executors.parameter_server.server import Result, Served
from roundweave.tasks.process_group.peers import Peer
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence import pushes
from roundweave.tasks.rounds.persistence.apart import read_frozen, score_apart, state_to_map
from roundweave.tasks.rounds.persistence.mapping import Again
from roundweave.tasks.rounds.steps import Outcome

NOTICE_SECONDS = 0.05
"""Seconds between two notices of commits, but for the last: each costs three processes some tenths of a ms."""

LOOK_SECONDS = 0.005
"""Seconds after which a server to which nothing comes looks whether rounds are committed, and if it is halted."""


def map_for_server(job: Job, data: BlockExamples, server: Peer, again: Again) -> None:
    """Map and score a block's partitions as the server asks, until it ends.

    `data` are the examples of the block. If a map raises, `again` runs it once more.
    """
    frozen = read_frozen(job)
    for asked in server.incoming():
        state, push = asked
        if push is None:
            server.send(score_apart(job, state, frozen, None, data))
        else:
            partition, in_flight, before = push
            due = partition, in_flight, [Outcome(replace(state, frozen=frozen))], before.carry
            server.send(pushes.make_pushes(job, data, [due], again))


class RankServer(ArrivingServer):
    """An asynchronous run by ranks, from a committed round on, until it is halted or the run ends.

    `peers` are the other ranks by number, of which b + 1 maps block b.
    """

    def __init__(self, job: Job, round: int, peers: Mapping[int, Peer]) -> None:
        super().__init__(job, round, self._submit)
        self.committed = round
        self._peers = [peers[block + 1] for block in range(job.blocks)]
        self._asked: list[deque[tuple[list[Any], tuple[int, ...]]]] = [deque() for _ in self._peers]
        self._committing: Future[list[Commit]] | None = None
        self._stopped = False
        self._noticed = round, 0.0

    def run(self, halted: Callable[[], bool], notify: Callable[[int], None]) -> int:
        """Compute and commit the rounds up to the last one, and return the last that is committed.

        `notify` is called with the last committed round, but for the very last. Raises `Broken` if a rank is lost,
        once all that was computed is committed.
        """
        last = self.job.attempt.rounds
        self._server.data = [None] * self.job.blocks  # the other ranks have the examples
        with ThreadPoolExecutor(1) as thread, selectors.DefaultSelector() as selector:
            for block, peer in enumerate(self._peers):
                selector.register(peer.connection, selectors.EVENT_READ, block)
            try:
                self._begin(self._go_on())
                while self.committed < last and not self._stopped and not halted():
                    while self._take_in(last):
                        pass
                    self._commits(thread, notify)
                    for key, _ in selector.select(LOOK_SECONDS):
                        self._receive(key.data)
            finally:
                while committing := self._commits(thread, notify):
                    wait([committing])
        for peer in self._peers:
            peer.send(None)
        return self.committed

    def _submit(self, kind: str, number: int, at: Any, function: Callable[..., Any], *arguments: Any) -> Result:
        """Run a task here; maps and scores by the rank that has the examples, whose answer is filled in later."""
        if kind == "push":
            _, [(partition, in_flight, fetched, before)], _ = arguments
            carry = before if isinstance(before, Mapping) else pushes.at(before).carry
            return self._ask(self._blocks[partition], fetched, (partition, in_flight, Update({}, carry=carry)), at)
        if kind == "score":
            return self._ask(at, arguments[0])
        return function(self.job, *arguments)

    def _ask(
        self, block: int, version: pushes.Version, push: Any = None, partitions: tuple[int, ...] = ()
    ) -> list[Any]:
        answer: list[Any] = []
        self._asked[block].append((answer, partitions))
        self._peers[block].send((state_to_map(self.job, version[-1]), push))
        return answer

    def _receive(self, block: int) -> None:
        answer, partitions = self._asked[block].popleft()
        answer += self._peers[block].receive()
        self._arrived += partitions

    def _begin(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._server.begin([partition], self._blocks[partition])

    def _commits(self, thread: ThreadPoolExecutor, notify: Callable[[int], None]) -> Future[list[Commit]] | None:
        """The commits under way, of which the next begin when the last ones are made; None if there are none."""
        if self._committing is not None and self._committing.done():
            commits, self._committing = self._committing.result(), None
            self.committed, self._stopped = commits[-1].round, bool(commits[-1].stop)
        if self.committed > self._noticed[0] and time.monotonic() > self._noticed[1] + NOTICE_SECONDS:
            self._noticed = self.committed, time.monotonic()
            notify(self.committed)
        if self._committing is None and not self._stopped:
            batch = [*takewhile(self._scored, self._uncommitted)]
            del self._uncommitted[: len(batch)]
            served = [(each.outcomes, each.pushed, each.scores) for each in batch]
            if served:
                self._committing = thread.submit(
                    pushes.commit_server_rounds, self.job, served, self.job.attempt.rounds
                )
        return self._committing

    def _scored(self, served: Served) -> bool:
        """Whether the scores of some rounds are there, if they are to have any."""
        return not any(answer is score for of in self._asked for answer, _ in of for score in served.scores)
