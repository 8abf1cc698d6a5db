"""Schedules: who begins when, from which state, if partitions do not begin each round together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from roundweave.storage.rounds.commits import Commit, UpdateRecord


class Schedule(Protocol):
    """Lets partitions begin one by one, each from a state of its own. A round takes in what has arrived.

    The commits of such rounds have a record of the `server`, and of how each update arrived. `largest_window` is
    the most rounds of a window.
    """

    largest_window: ClassVar[int]

    def here(self, job: Any, round: int) -> Any:
        """Return a server in this process. Its `rounds(data, last)` yields the rounds after a committed one.

        The same server is asked for the rounds of the next window, unless it has failed.
        """

    def by_tasks(self, pool: Any, job: Any, round: int) -> Any:
        """Return the same on a pool of workers. Its `rounds(last)` yields commits."""

    def by_ranks(self, job: Any, round: int, *among: Any) -> Iterator[Any]:
        """Yield the rounds after a committed one on the first rank. The other ranks map for it meanwhile.

        `among` are the rank, its peers, the examples of its block, and what says that it is halted and maps again.
        """

    def inputs(self, job: Any, commit: Commit, among: Sequence[int], carry: Any, state: Any) -> Iterator[Any]:
        """Return the inputs of the maps of partitions `among` a committed round. See `recorded_inputs`."""

    def judged(self, work: Any, record: UpdateRecord, recorded: UpdateRecord) -> UpdateRecord:
        """Return the record of an update that is mapped again, refused if `recorded` says that it came late."""

    def reduce(self, work: Any, before: Any, commit: Commit, blocks: Sequence[Any]) -> Any:
        """Return the outcome of a committed round again, from the one before it and the updates of blocks."""
