"""Rounds as a loop in this process, without Dask: the reference for every other executor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from storage.rounds.commits import Commit
from tasks.asynchronous.steps import Pushed
from tasks.data.partitions import Partition
from tasks.evidence.replaying import replay_block, replay_round
from tasks.evidence.results import RoundResult
from tasks.executors.parameter_server.inline import Turns
from tasks.keeping.committing import (
    load_and_keep,
    load_block,
    map_and_keep,
    read_outcome,
    reduce_round,
    score_outcome,
)
from tasks.keeping.pushes import commit_pushes
from tasks.rounds.job import Job
from tasks.rounds.pace import Notice, log_notice, watched
from tasks.rounds.scoring import Tally
from tasks.rounds.steps import Outcome
from tasks.when import Asynchronous

T = TypeVar("T")


@dataclass(frozen=True)
class Computed:
    """A round that is not kept yet: its outcome, its scores, and the updates that landed in it at a server."""

    outcome: Outcome
    tallies: Sequence[Sequence[Tally]]
    pushed: Sequence[Pushed] = ()


class InlineExecutor:
    """Runs rounds here, and tells of maps that take longer than `patience` seconds."""

    def __init__(self, patience: float = 60.0, notice: Notice = log_notice) -> None:
        self.patience = patience
        self.notice = notice
        self._data: tuple[str, int, list[Partition]] | None = None
        self._outcome: tuple[str, Outcome] | None = None
        self._turns: tuple[str, Turns] | None = None

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """What a function gives in this process."""
        return {"this process": function()}

    def gather(self, function: Callable[[int], T], partitions: range) -> list[T]:
        """What a function gives for each partition."""
        return [function(partition) for partition in partitions]

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run a window of rounds, giving each commit as it is made; ends early where a commit says stop."""
        job = job.run_by("inline")
        asynchronous = isinstance(job.work.algorithm.when, Asynchronous)
        rounds = (self._arrivals if asynchronous else self._rounds)(job, first, last)
        # Where a round takes its time to be kept, the next one's maps do not wait for it.
        ahead = job.attempt.open().tensors.slow
        commit, kept = None, next(rounds, None)
        with ThreadPoolExecutor(1) as pen:
            while kept:
                closing = kept.outcome.state.round == last
                waiting = pen.submit(_commit, job, kept, commit, closing) if ahead else None
                following = next(rounds, None) if ahead else None
                commit = waiting.result() if waiting else _commit(job, kept, commit, closing)
                yield commit
                if commit.stop:
                    return
                kept = following if ahead else next(rounds, None)

    def _rounds(self, job: Job, first: int, last: int) -> Iterator[Computed]:
        """Each round, computed when it is asked for."""
        outcome = self._before(job, first)
        for round in range(first, last + 1):
            data = self._load(load_and_keep, job, round)
            with watched(self.patience, self.notice):
                mapped = map_and_keep(job, outcome, data, 0)
            outcome = reduce_round(job, outcome, [mapped])
            del mapped  # updates are as large as the state
            self._outcome = job.attempt.token, outcome
            yield Computed(outcome, self._scored(job, outcome, data))

    def _arrivals(self, job: Job, first: int, last: int) -> Iterator[Computed]:
        """Each round of a parameter server, computed when it is asked for."""
        made, self._turns = self._turns, None
        if made is None or made[0] != job.attempt.token or made[1].outcome.state.round != first - 1:
            made = job.attempt.token, Turns(job, first - 1)
        data = self._load(load_and_keep, job, first)
        with watched(self.patience, self.notice):
            for outcome, pushed in made[1].rounds(data, last):
                yield Computed(outcome, self._scored(job, outcome, data), pushed)
        # Kept for the next window only now: turns that failed have lost an intake.
        self._turns = made

    def _scored(self, job: Job, outcome: Outcome, data: list[Partition]) -> list[list[Tally]]:
        return [score_outcome(job, outcome, data)] if job.attempt.scored(outcome.state.round) else []

    def _before(self, job: Job, round: int) -> Outcome:
        """The outcome of the round before, which this executor may have made itself."""
        made = self._outcome
        if made and made[0] == job.attempt.token and made[1].state.round == round - 1:
            return made[1]
        return read_outcome(job, round - 1)

    def end(self) -> None:
        """Let go of the examples and of the last state: who is asked for them has them again."""
        self._data = self._outcome = self._turns = None
        with suppress(OSError, AttributeError):  # other C libraries than glibc keep less of what is freed
            ctypes.CDLL(None).malloc_trim(0)

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds, giving the result of each; nothing is written."""
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


def _commit(job: Job, computed: Computed, previous: Commit | None, closing: bool) -> Commit:
    return commit_pushes(job, computed.outcome, computed.pushed, computed.tallies, previous, closing)
