"""The engine: one loop of rounds over a communicator, and the committer that keeps what it computes.

`inline` runs it alone, and the ranks on Dask's workers run it as a process group. The tasks of `graph` are made of
the same functions (see `tasks.persistence.committing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest

from storage.rounds.commits import Commit, ProcessGroupRecord
from storage.values.state import Update
from tasks.compute.communicator import Alone, Communicator
from tasks.data.partitions import Partition
from tasks.persistence.committing import (
    Rank,
    commit_round,
    load_and_keep,
    map_keep_fold,
    reduce_round,
    score_outcome,
)
from tasks.process_group.memory import most_memory
from tasks.process_group.reduce_scatter import block_share, in_shares, reduce_in_shares
from tasks.rounds.job import Job
from tasks.rounds.scoring import Tally
from tasks.rounds.steps import BlockResult, Outcome

KINDS = ("activations", "updates", "tensors")
"""What ranks send: within a team, to ranks that map other blocks, and to the rank that writes."""


@dataclass(frozen=True)
class Report:
    """What a rank says in each round: whether it was halted, the bytes sent so far by kind, and its memory."""

    halted: bool
    sent: tuple[int, ...]
    memory: int


@dataclass(frozen=True)
class Computed:
    """A round that is not committed yet: its outcome, and the scores of each block.

    The other fields are as in `commit_round`.
    """

    outcome: Outcome
    tallies: Sequence[Sequence[Tally]]
    updates: Mapping[int, Update] = field(default_factory=dict)
    process_group: ProcessGroupRecord | None = None
    digests: Mapping[str, str] | None = None


class BlockData:
    """The examples of a block under the last split that was asked for."""

    def __init__(self, block: int, number: int | None = None, examples: list[Partition] | None = None) -> None:
        self.block = block
        self._number = number
        self._examples = examples or []

    def __call__(
        self, job: Job, round: int, load: Callable[[Job, int, int], list[Partition]] = load_and_keep
    ) -> list[Partition]:
        """The examples of the block in a round of this run; `load` reads them where the split is another one."""
        if (number := job.split(round)) != self._number:
            self._number, self._examples = number, load(job, number, self.block)
        return self._examples


@dataclass(frozen=True)
class Engine:
    """Rounds as one rank computes them, together with those that map other blocks (`others`).

    With a `team` it shares one network; `writers` leads to the rank of the team that writes. `reporting` ranks
    have their commits say what the process group took.
    """

    rank: Rank
    data: BlockData
    others: Communicator = field(default_factory=Alone)
    team: Communicator = field(default_factory=Alone)
    writers: Communicator = field(default_factory=Alone)
    reporting: bool = True

    def rounds(
        self, outcome: Outcome, last: int, halted: Callable[[], bool] = lambda: False
    ) -> Iterator[Computed]:
        """Each round after an outcome, once it is computed; where a rank is `halted`, all end at that round."""
        job, before = self.rank.job, list[Report]()
        shared = self.team.ranks == 1 and in_shares(job, self.others.ranks)
        for round in range(outcome.state.round + 1, last + 1):
            data = self.data(job, round)
            mapped = map_keep_fold(self.rank, outcome, data, self.data.block)
            reports, blocks = zip(*self._exchanged(mapped, halted(), shared), strict=True)
            if any(report.halted for team in reports for report in team):
                return
            if shared:
                outcome = reduce_in_shares(job, outcome, blocks, self.others)
            else:
                outcome = reduce_round(job, outcome, blocks)
            del mapped, blocks  # updates are as large as the state
            digests = self.rank.keep_state(outcome) if self.data.block == 0 else None
            scored = job.attempt.scored(round)
            tallies = self.others.all_gather(score_outcome(job, outcome, data)) if scored else []
            now = [report for team in zip(*reports, strict=True) for report in team]
            record = _record(now, before, self.team.ranks) if self.reporting else None
            before = now
            yield Computed(outcome, tallies, process_group=record, digests=digests)

    def _exchanged(
        self, mapped: BlockResult, halted: bool, shared: bool
    ) -> list[tuple[list[Report], BlockResult]]:
        """What all teams report, and what their blocks gave, or this rank's share of it."""
        sent = tuple(each.sent for each in (self.team, self.others, self.writers))
        team, ranks = self.team.all_gather(Report(halted, sent, most_memory())), self.others.ranks
        if not shared:
            return self.others.all_gather((team, mapped))
        return self.others.scatter([(team, block_share(mapped, rank, ranks)) for rank in range(ranks)])


def _record(ranks: Sequence[Report], before: Sequence[Report], team: int) -> ProcessGroupRecord:
    """What a round took, from the reports after its maps and after those of the round before."""
    totals = [
        [sum(each) for each in zip(*(report.sent for report in reports), strict=True)]
        for reports in (ranks, before)
    ]
    sent = [now - then for now, then in zip_longest(*totals, fillvalue=0)]
    return ProcessGroupRecord(
        len(ranks), team, dict(zip(KINDS, sent, strict=True)), tuple(report.memory for report in ranks)
    )


class Committer:
    """Commits rounds in a thread of its own; where `ahead`, each while the next one is computed.

    `closing` is the last round of a window, whose state is stored; `notify` is called after each commit.
    """

    def __init__(
        self, job: Job, ahead: bool = True, closing: int = 0, notify: Callable[[int], None] = lambda round: None
    ) -> None:
        self.job = job
        self.ahead = ahead
        self.closing = closing
        self.notify = notify
        self._pending: Future[Commit] | None = None

    @property
    def stopped(self) -> bool:
        """Whether a commit has ended the run."""
        return self._pending is not None and self._pending.done() and bool(self._pending.result().stop)

    def commits(self, rounds: Iterable[Computed]) -> Iterator[Commit]:
        """The commit of each round; what one raises ends them all. At the end none is under way."""
        previous, given = None, True
        with ThreadPoolExecutor(1) as thread:
            for computed in rounds:
                if self._pending is not None:
                    previous = self._pending.result()
                    if not given:
                        yield previous
                self._pending, given = thread.submit(self._commit, computed, previous), False
                if not self.ahead:
                    yield self._pending.result()
                    given = True
            if self._pending is not None and not given:
                yield self._pending.result()

    def _commit(self, computed: Computed, previous: Commit | None) -> Commit:
        commit = commit_round(
            self.job,
            computed.outcome,
            computed.tallies,
            previous,
            closing=computed.outcome.state.round == self.closing,
            updates=computed.updates,
            process_group=computed.process_group,
            digests=computed.digests,
        )
        self.notify(commit.round)
        return commit
