"""What a rank does: rounds of the same plan by the same steps, with what passes between ranks in their midst."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Protocol

from storage.rounds.commits import Commit, GangRecord
from tasks.data.partitions import Partition
from tasks.gang.group import Group
from tasks.gang.memory import most_memory
from tasks.gang.sharing import block_share, in_shares, reduce_in_shares
from tasks.keeping.committing import (
    Made,
    commit_round,
    load_and_keep,
    map_and_keep,
    read_outcome,
    reduce_round,
    score_outcome,
)
from tasks.keeping.in_shares import InShares
from tasks.rounds.job import Job
from tasks.rounds.scoring import Tally
from tasks.rounds.steps import BlockResult, Mapped, MapRaised, Outcome

Data = tuple[int, list[Partition]]
"""The number of a split, and the examples of a block under it."""

Told = Callable[[int], None]
"""Tells who waits for it that a round is committed."""


KINDS = ("activations", "updates", "tensors")
"""What ranks have for each other: within a team, for those of other teams, and for the one that writes."""


@dataclass(frozen=True)
class Report:
    """What a rank tells in each round: whether it is halted, the bytes sent so far by kind, and its memory."""

    halted: bool
    sent: tuple[int, ...]
    memory: int


@dataclass(frozen=True)
class Computed:
    """A round that is not committed yet: the outcome, which all ranks have, the scores of each block, and more."""

    outcome: Outcome
    tallies: Sequence[Sequence[Tally]]
    made: Made


class Rank(Protocol):
    """What a rank does in a round besides talking to those that map other blocks.

    `job` is that of its share of the network.
    """

    @property
    def job(self) -> Job:
        """The work, and where it is kept."""
        ...

    def read_outcome(self, round: int) -> Outcome:
        """The outcome of a committed round, verified."""
        ...

    def map_and_keep(self, before: Outcome, data: Sequence[Partition], block: int) -> BlockResult:
        """Map a block's partitions, keep their updates, and fold what can be folded."""
        ...

    def keep_state(self, after: Outcome) -> Mapping[str, str] | None:
        """Keep the state after a round; the digests of its tensors, None where it is kept with the commit."""
        ...


def by_tasks(map_again: Callable[[], Mapped]) -> Mapped:
    """Other ranks are at maps of their own: Dask's tasks do a round in which a map raises."""
    raise MapRaised("a map of a rank raised")


@dataclass(frozen=True)
class Lone:
    """A rank that maps for itself, and has the whole network."""

    job: Job

    def read_outcome(self, round: int) -> Outcome:
        """All of it."""
        return read_outcome(self.job, round)

    def map_and_keep(self, before: Outcome, data: Sequence[Partition], block: int) -> BlockResult:
        """As the tasks of other executors do."""
        return map_and_keep(self.job, before, data, block, again=by_tasks)

    def keep_state(self, after: Outcome) -> None:
        """It is kept with the commit."""


def run_rank(job: Job, group: Group, data: Data, halted: Callable[[], bool], told: Told) -> int:
    """All rounds that follow the last committed one, as one rank of a group; its team maps a block of partitions.

    Ends with the run, or where the first rank is halted. Gives the last round that it knows to be committed;
    raises `Broken` where a rank is gone.
    """
    first: int = group.all_gather((job.attempt.open().log.look().newest or 0) + 1)[0]
    ranks = job.ranks
    teams = [range(begin, begin + ranks) for begin in range(0, group.ranks, ranks)]
    if ranks == 1:
        alone = Group(0, 1)
        rounds = _Rounds(Lone(job), group, alone, alone, group.rank)
    else:
        team, line, same = group.part(teams), group.part(teams), group.part([*zip(*teams, strict=True)])
        rounds = _Rounds(InShares.of(job, team, line), same, team, line, group.rank // ranks)
    if group.rank:
        for _ in rounds.run(first, data, halted):
            pass
        return first - 1
    with _writer(job, told) as writer:
        for computed in rounds.run(first, data, lambda: halted() or writer.stopped):
            writer.write(computed)
        return writer.written() or first - 1


@dataclass(frozen=True)
class _Rounds:
    """The rounds as a rank computes them: with its `team`, and with the `others` that map another `block` each.

    A `line` leads to the rank of the team that writes.
    """

    rank: Rank
    others: Group
    team: Group
    line: Group
    block: int

    def run(self, first: int, given: Data, halted: Callable[[], bool]) -> Iterator[Computed]:
        """Each round once it is computed; all ranks end with the same one."""
        job = self.rank.job
        outcome, (number, data) = self.rank.read_outcome(first - 1), given
        before: list[Report] = []
        shared = self.team.ranks == 1 and in_shares(job, self.others.ranks)
        for round in range(first, job.attempt.rounds + 1):
            if job.split(round) != number:
                number = job.split(round)
                data = load_and_keep(job, number, self.block)
            mapped = self.rank.map_and_keep(outcome, data, self.block)
            team = self.team.all_gather(self._report(halted()))
            reports, blocks = zip(*self._exchanged(team, mapped, shared), strict=True)
            if any(report.halted for team in reports for report in team):
                return
            reduced = partial(reduce_in_shares, group=self.others) if shared else reduce_round
            outcome = reduced(job, outcome, blocks)
            del mapped, blocks  # updates are as large as the state
            digests = self.rank.keep_state(outcome) if self.block == 0 else None
            scored = job.attempt.scored(round)
            tallies = self.others.all_gather(score_outcome(job, outcome, data)) if scored else []
            now = [report for team in zip(*reports, strict=True) for report in team]
            gang, before = _record(now, before, self.team.ranks), now
            yield Computed(outcome, tallies, Made(gang, digests))

    def _exchanged(
        self, team: list[Report], mapped: BlockResult, shared: bool
    ) -> list[tuple[list[Report], BlockResult]]:
        """What all teams report, and what their blocks gave, or this rank's share of it."""
        if not shared:
            return self.others.all_gather((team, mapped))
        ranks = self.others.ranks
        return self.others.scatter([(team, block_share(mapped, rank, ranks)) for rank in range(ranks)])

    def _report(self, halted: bool) -> Report:
        lines = self.team, self.others, self.line
        return Report(halted, tuple(line.sent for line in lines), most_memory())


def _record(ranks: Sequence[Report], before: Sequence[Report], team: int) -> GangRecord:
    """What a round took, by what the ranks tell at the end of its maps and of those of the round before."""
    totals = [
        [sum(each) for each in zip(*(report.sent for report in reports), strict=True)]
        for reports in (ranks, before)
    ]
    sent = [now - then for now, then in zip_longest(*totals, fillvalue=0)]
    return GangRecord(len(ranks), team, dict(zip(KINDS, sent, strict=True)), tuple(r.memory for r in ranks))


class _Writer:
    """Commits rounds beside the maps of the next ones."""

    def __init__(self, job: Job, pen: ThreadPoolExecutor, told: Told) -> None:
        self._job = job
        self._pen = pen
        self._told = told
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
        commit = commit_round(
            self._job,
            computed.outcome,
            computed.tallies,
            previous,
            closing=False,
            made=computed.made,
        )
        self._told(commit.round)
        return commit


@contextmanager
def _writer(job: Job, told: Told) -> Iterator[_Writer]:
    """Within, rounds are committed; at the end all are."""
    with ThreadPoolExecutor(1) as pen:
        yield _Writer(job, pen, told)
