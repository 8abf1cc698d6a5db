"""Rounds in this process, without Dask: the engine alone, and the reference for every other executor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from storage.rounds.commits import Commit
from tasks.engine import BlockData, Committer, Computed, Engine
from tasks.evidence.replaying import replay_block, replay_round
from tasks.evidence.results import RoundResult
from tasks.executors.parameter_server.inline import Turns
from tasks.persistence.committing import WholeNetwork, load_block, score_outcome
from tasks.rounds.job import Job
from tasks.rounds.steps import Outcome
from tasks.rounds.timing import Notice, log_notice, watched
from tasks.when import Asynchronous

T = TypeVar("T")


class InlineExecutor:
    """Runs rounds here, and notifies of maps that take longer than `patience` seconds."""

    def __init__(self, patience: float = 60.0, notice: Notice = log_notice) -> None:
        self.patience = patience
        self.notice = notice
        self._run = ""
        self.end()

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """What a function gives in this process."""
        return {"this process": function()}

    def gather(self, function: Callable[[int], T], partitions: range) -> list[T]:
        """What a function gives for each partition."""
        return [function(partition) for partition in partitions]

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run a window of rounds, giving each commit as it is made; ends early where a commit says stop."""
        job = job.run_by("inline")
        self._begin(job)
        asynchronous = isinstance(job.work.algorithm.when, Asynchronous)
        # Where a round takes its time to be stored, the next one's maps do not wait for it.
        committer = Committer(job, ahead=job.attempt.open().tensors.slow, closing=last)
        with watched(self.patience, self.notice):
            for commit in committer.commits((self._arrivals if asynchronous else self._rounds)(job, first, last)):
                yield commit
                if commit.stop:
                    return

    def _rounds(self, job: Job, first: int, last: int) -> Iterator[Computed]:
        engine, before = Engine(WholeNetwork(job), self._data, reporting=False), self._outcome
        if before is None or before.state.round != first - 1:
            before = engine.rank.read_outcome(first - 1)
        for computed in engine.rounds(before, last):
            self._outcome = computed.outcome
            yield computed

    def _arrivals(self, job: Job, first: int, last: int) -> Iterator[Computed]:
        """Each round of a parameter server, computed when it is asked for."""
        turns, self._turns = self._turns, None
        if turns is None or turns.outcome.state.round != first - 1:
            turns = Turns(job, first - 1)
        data = self._data(job, first)
        for outcome, pushed in turns.rounds(data, last):
            scored = job.attempt.scored(outcome.state.round)
            tallies = [score_outcome(job, outcome, data)] if scored else []
            yield Computed(outcome, tallies, {each.partition: each.update for each in pushed})
        # Kept for the next window only now: after a failure the server has lost an update.
        self._turns = turns

    def _begin(self, job: Job) -> None:
        """Forget what is in memory of another run."""
        if self._run != job.attempt.token:
            self.end()
            self._run = job.attempt.token

    def end(self) -> None:
        """Free the examples and the last state: who asks for them again reads them again."""
        self._data, self._outcome, self._turns = BlockData(0), None, None
        with suppress(OSError, AttributeError):  # other C libraries than glibc keep less of what is freed
            ctypes.CDLL(None).malloc_trim(0)

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds, giving the result of each; nothing is written."""
        self._begin(job)
        with watched(self.patience, self.notice):
            for round in rounds:
                block = replay_block(job, round, self._data(job, round, load_block), 0)
                yield replay_round(job, round, [block])

    _data: BlockData
    _outcome: Outcome | None
    _turns: Turns | None
