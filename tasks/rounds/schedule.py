"""Who begins when, from which state, where partitions do not begin each round together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from roundweave.storage.rounds.commits import Commit, UpdateRecord


class Schedule(Protocol):
    """How partitions begin one by one, each from a state of its own; a round takes in what has arrived.

    The commits of such rounds have a record of the `server`, and of how each update arrived. `largest_window` is
    the most rounds of a window.
    """

    largest_window: ClassVar[int]

    def here(self, job: Any, round: int) -> Any:
        """A server in this process, whose `rounds(data, last)` yields the rounds after a committed one.

        The same server is asked for those of the next window, unless it has failed.
        """

    def by_tasks(self, pool: Any, job: Any, round: int) -> Any:
        """The same on a pool of workers: its `rounds(last)` yields commits."""

    def by_ranks(self, job: Any, round: int, *among: Any) -> Iterator[Any]:
        """Yield the rounds after a committed one on the first rank; the others map for it meanwhile.

        `among` are the rank, its peers, the examples of its block, and what says that it is halted and maps again.
        """

    def inputs(self, job: Any, commit: Commit, among: Sequence[int], carry: Any, state: Any) -> Iterator[Any]:
        """What those `among` the partitions of a committed round were mapped from; see `recorded_inputs`."""

    def judged(self, work: Any, record: UpdateRecord, recorded: UpdateRecord) -> UpdateRecord:
        """The record of an update that is mapped again; refused where one that arrived as is `recorded` is."""

    def reduce(self, work: Any, before: Any, commit: Commit, blocks: Sequence[Any]) -> Any:
        """The outcome of a committed round again, from the one before it and the updates that blocks have."""
