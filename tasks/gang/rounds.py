"""What a rank does: rounds of the same plan by the same steps, with what passes between ranks in their midst."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from storage.rounds.commits import Commit
from tasks.data.partitions import Partition
from tasks.gang.group import Group
from tasks.keeping.committing import (
    commit_round,
    load_and_keep,
    map_and_keep,
    read_outcome,
    reduce_round,
    score_outcome,
)
from tasks.rounds.job import Job
from tasks.rounds.scoring import Tally
from tasks.rounds.steps import Outcome

NUMBERS_SECONDS = 0.25
"""The numbers of rounds are written so often, and read from the records until then: they are many small files."""

Data = tuple[int, list[Partition]]
"""The number of a split, and the examples of a block under it."""

Told = Callable[[int], None]
"""Tells who waits for it that a round is committed."""


@dataclass(frozen=True)
class Computed:
    """A round that is not committed yet: the outcome, which all ranks have, and the scores of each."""

    outcome: Outcome
    tallies: Sequence[Sequence[Tally]]


def run_rank(job: Job, group: Group, data: Data, halted: Callable[[], bool], told: Told) -> int:
    """All rounds that follow the last committed one, as one rank of a group that maps a block of partitions.

    Ends with the run, or where the first rank is halted. Gives the last round that it knows to be committed;
    raises `Broken` where a rank is gone.
    """
    first: int = group.all_gather((job.attempt.open().log.look().newest or 0) + 1)[0]
    if group.rank:
        for _ in _rounds(job, group, first, data, halted):
            pass
        return first - 1
    with _writer(job, told) as writer:
        for computed in _rounds(job, group, first, data, lambda: halted() or writer.stopped):
            writer.write(computed)
        return writer.written() or first - 1


def _rounds(job: Job, group: Group, first: int, given: Data, halted: Callable[[], bool]) -> Iterator[Computed]:
    """Each round once it is computed; all ranks end with the same one."""
    outcome, (number, data) = read_outcome(job, first - 1), given
    for round in range(first, job.attempt.rounds + 1):
        if job.split(round) != number:
            number = job.split(round)
            data = load_and_keep(job, number, group.rank)
        mapped = map_and_keep(job, outcome, data, group.rank)
        halts, blocks = zip(*group.all_gather((halted(), mapped)), strict=True)
        if any(halts):
            return
        outcome = reduce_round(job, outcome, blocks)
        scored = job.attempt.scored(round)
        yield Computed(outcome, group.all_gather(score_outcome(job, outcome, data)) if scored else [])


class _Writer:
    """Commits rounds beside the maps of the next ones."""

    def __init__(self, job: Job, pen: ThreadPoolExecutor, told: Told) -> None:
        self._job = job
        self._pen = pen
        self._told = told
        self._settled = 0.0
        self._commit: Future[Commit] | None = None

    @property
    def stopped(self) -> bool:
        """Whether a commit has ended the run."""
        return self._commit is not None and self._commit.done() and bool(self._commit.result().stop)

    def write(self, computed: Computed) -> None:
        """Commit a round, once the one before is."""
        previous = self._commit.result() if self._commit else None
        self._commit = self._pen.submit(self._write, computed, previous)

    def written(self) -> int:
        """The last round that is committed, 0 for none."""
        return self._commit.result().round if self._commit else 0

    def _write(self, computed: Computed, previous: Commit | None) -> Commit:
        more = time.monotonic() < self._settled + NUMBERS_SECONDS
        commit = commit_round(self._job, computed.outcome, computed.tallies, previous, closing=False, more=more)
        if not more:
            self._settled = time.monotonic()
        self._told(commit.round)
        return commit


@contextmanager
def _writer(job: Job, told: Told) -> Iterator[_Writer]:
    """Within, rounds are committed; at the end all numbers are written, too."""
    with ThreadPoolExecutor(1) as pen:
        try:
            yield _Writer(job, pen, told)
        finally:
            pen.submit(job.attempt.open().history.settle).result()
