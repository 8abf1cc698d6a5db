"""Rounds as a loop in this process, without Dask: the reference for every other executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from storage.rounds.commits import Commit
from tasks.data.partitions import Partition
from tasks.numerics import Fingerprint, fingerprint
from tasks.rounds.committing import (
    commit_round,
    load_and_keep,
    load_block,
    map_and_keep,
    read_outcome,
    reduce_round,
    score_outcome,
)
from tasks.rounds.job import Job
from tasks.rounds.pace import Notice, log_notice, watched
from tasks.rounds.replaying import replay_block, replay_round
from tasks.rounds.scoring import Tally
from tasks.rounds.steps import Outcome
from tasks.rounds.verdicts import Verdict

T = TypeVar("T")


class InlineExecutor:
    """Runs rounds here, and tells of maps that take longer than `patience` seconds."""

    def __init__(self, patience: float = 60.0, notice: Notice = log_notice) -> None:
        self.patience = patience
        self.notice = notice
        self._data: tuple[str, int, list[Partition]] | None = None
        self._outcome: tuple[str, Outcome] | None = None

    def fingerprints(self) -> dict[str, Fingerprint]:
        """What this process may do to the bits."""
        return {"this process": fingerprint()}

    def gather(self, function: Callable[[int], T], partitions: range) -> list[T]:
        """What a function gives for each partition."""
        return [function(partition) for partition in partitions]

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run a window of rounds, giving each commit as it is made; ends early where a commit says stop."""
        rounds = self._rounds(job, first, last)
        # Where a round takes its time to be kept, the next one's maps do not wait for it.
        ahead = job.attempt.open().tensors.slow
        commit, kept = None, next(rounds, None)
        with ThreadPoolExecutor(1) as pen:
            while kept:
                waiting = pen.submit(commit_round, job, *kept, commit) if ahead else None
                following = next(rounds, None) if ahead else None
                commit = waiting.result() if waiting else commit_round(job, *kept, commit)
                yield commit
                if commit.stop:
                    return
                kept = following if ahead else next(rounds, None)

    def _rounds(self, job: Job, first: int, last: int) -> Iterator[tuple[Outcome, list[list[Tally]]]]:
        """The outcome and the scores of each round, computed when it is asked for."""
        outcome = self._before(job, first)
        for round in range(first, last + 1):
            data = self._load(load_and_keep, job, round)
            with watched(self.patience, self.notice):
                mapped = map_and_keep(job, outcome, data, 0)
            outcome = reduce_round(job, outcome, [mapped])
            self._outcome = job.attempt.token, outcome
            yield outcome, [score_outcome(job, outcome, data)] if job.attempt.scored(round) else []

    def _before(self, job: Job, round: int) -> Outcome:
        """The outcome of the round before, which this executor may have made itself."""
        made = self._outcome
        if made and made[0] == job.attempt.token and made[1].state.round == round - 1:
            return made[1]
        return read_outcome(job, round - 1)

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[Verdict]:
        """Replay rounds, giving the verdict on each; nothing is written."""
        for round in rounds:
            data = self._load(load_block, job, round)
            with watched(self.patience, self.notice):
                block = replay_block(job, round, data, 0)
            yield replay_round(job, round, [block])

    def _load(self, load: Callable[[Job, int, int], list[Partition]], job: Job, round: int) -> list[Partition]:
        number = job.split(round)
        if self._data is None or self._data[:2] != (job.attempt.token, number):
            self._data = job.attempt.token, number, load(job, number, 0)
        return self._data[2]
