"""The engine, a loop that computes rounds over a communicator, and the committer, which stores them.

The `inline` executor runs the engine alone. Ranks on Dask's workers run it as a process group. The tasks of the
`graph` executor call the same functions (see `roundweave.tasks.rounds.persistence`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from roundweave.storage.errors import RoundweaveError
from roundweave.storage.places.base import call_now
from roundweave.storage.rounds.commits import Commit, ProcessGroupRecord
from roundweave.tasks.compute.communicator import Alone, Communicator
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.numerics.pinning import generators_kept
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import Computed, commit_round, score_outcome
from roundweave.tasks.rounds.persistence.mapping import load_and_persist, load_block
from roundweave.tasks.rounds.shares import nodes_share, scatters
from roundweave.tasks.rounds.steps import BlockResult, Outcome, reduce_apply

MapBlock = Callable[[Outcome, BlockExamples, int], BlockResult]
"""Maps a block's partitions from the outcome before a round, and stores their updates."""


@dataclass(frozen=True)
class Report:
    """The report of a rank to the others in each round.

    `sent` are the bytes that it has sent so far, by kind. `memory` is the most that it has held, in bytes.
    """

    halted: bool
    sent: Mapping[str, int]
    memory: int


class BlockData:
    """Loads the examples of a block, and keeps those of the last draw, see `Job.draw`.

    It may begin with `examples` of the run whose attempt has the token `of`, for a draw of its job. If the data
    are given as a whole, the next round's examples are loaded in a thread beside the maps. Loading a partition
    alone may call the user's code, whose draws would meet those of a map.
    """

    def __init__(self, block: int, of: tuple[str, int] = ("", 0), examples: BlockExamples | None = None) -> None:
        self.block = block
        self._of = of
        self._examples = examples or {}
        self._ahead: dict[tuple[str, int], Future[BlockExamples]] = {}
        self._thread = ThreadPoolExecutor(1)

    def __call__(
        self, job: Job, round: int, load: Callable[[Job, int, int], BlockExamples] = load_and_persist
    ) -> BlockExamples:
        """Return the examples of the block in a round, by partition. For another draw, `load` reads them."""
        if (of := (job.attempt.token, job.draw(round))) != self._of:
            ahead, self._ahead = self._ahead.get(of), {}
            self._of, self._examples = of, ahead.result() if ahead else load(job, round, self.block)
        following = round < job.attempt.rounds and job.work.asks(round + 1)
        if load is load_and_persist and not self._ahead and following:
            self._load_ahead(job, round + 1)
        return self._examples

    def _load_ahead(self, job: Job, round: int) -> None:
        """Begin to load the examples of a round, if it asks others than the round before under one split."""
        work, of = job.work, (job.attempt.token, job.draw(round))
        same = work.split(round) == work.split(round - 1)  # a new split is stored when it is loaded
        if of != self._of and same and not work.partitions.source.partitioned:
            self._ahead[of] = self._thread.submit(load_block, job, round, self.block)


@dataclass(frozen=True)
class Engine:
    """Computes the rounds of a job, together with the engines of a `group` that map the other blocks.

    `map_block` maps the block of `data`. `report` gives the reports of the ranks that compute as this engine does.
    Commits record what the engines report of the process group: the bytes that it sent and held.
    """

    job: Job
    data: BlockData
    map_block: MapBlock
    group: Communicator = field(default_factory=Alone)
    report: Callable[[], Sequence[Report]] = tuple

    def rounds(self, outcome: Outcome, last: int) -> Iterator[Computed]:
        """Yield each round after an outcome, up to `last`, once it is computed.

        If any report says that its rank is halted, all engines end without this round.
        """
        job, before = self.job, list[Report]()
        size = job.attempt.open().schema.state_bytes
        shared = scatters(job.work.algorithm, size, self.group.ranks)
        for round in range(outcome.state.round + 1, last + 1):
            data = self.data(job, round)
            with generators_kept():  # once for all steps
                mapped = self.map_block(outcome, data, self.data.block)
                reports, blocks = zip(*self._exchanged(mapped, shared), strict=True)
                now = [report for each in reports for report in each]
                if any(report.halted for report in now):
                    return
                outcome = reduce_apply(job.work, outcome, blocks, self.group if shared else None)
                del mapped, blocks  # frees the updates, each as large as the state
                scored = job.attempt.scored(round)
                tallies = self.group.all_gather(score_outcome(job, outcome, data)) if scored else []
            record = _record(now, before, len(reports[0])) if now else None
            before = now
            yield Computed(outcome, tallies, process_group=record)

    def _exchanged(self, mapped: BlockResult, shared: bool) -> list[tuple[Sequence[Report], BlockResult]]:
        """Exchange reports and the results of blocks with all engines.

        With `shared`, this engine gets only its own share of the elements of each block's result.
        """
        report, ranks = self.report(), self.group.ranks
        mapped = replace(mapped, code=())  # every rank has the code in its job
        if not shared:
            return self.group.all_gather((report, mapped))
        shares = (replace(mapped, nodes=nodes_share(mapped.nodes, rank, ranks)) for rank in range(ranks))
        return self.group.scatter([(report, share) for share in shares])


def _record(now: Sequence[Report], before: Sequence[Report], sharing: int) -> ProcessGroupRecord:
    """Return the cost of a round, from all ranks' reports after its maps and after those of the round before.

    `sharing` is the number of ranks that share a network.
    """
    sent = {
        kind: sum(each.sent[kind] for each in now) - sum(each.sent[kind] for each in before)
        for kind in now[0].sent
    }
    return ProcessGroupRecord(len(now), sharing, sent, tuple(report.memory for report in now))


SHORT_SECONDS = 3e-3
"""A shorter round is committed by the thread that computes it: two threads would wait for each other."""


@dataclass
class Committer:
    """Commits rounds. If `ahead`, a thread of its own does so while the next round is computed.

    The outcome of round `held`, the last of a window, is held for the next window. `notify` is called with the
    number of each committed round.
    """

    job: Job
    ahead: bool = True
    held: int = 0
    notify: Callable[[int], None] = lambda round: None
    _pending: Future[Commit] | None = None

    @property
    def stopped(self) -> bool:
        """Whether the last commit says that the run stops."""
        return self._pending is not None and self._pending.done() and bool(self._pending.result().stop)

    def commits(self, rounds: Iterable[Computed]) -> Iterator[Commit]:
        """Commit each round, and yield the commits. An error of a round is raised after all commits before it.

        No commit is under way when this ends.
        """
        previous = None
        if not self.ahead:  # waiting for a thread would cost a round up to a millisecond
            for computed in rounds:
                previous = self._commit(computed, previous)
                yield previous
            return
        began, slow = time.monotonic(), self.job.attempt.open().tensors.slow
        with ThreadPoolExecutor(1) as thread:
            try:
                for computed in rounds:
                    for previous in self._awaited():
                        yield previous
                    short = not slow and time.monotonic() - began < SHORT_SECONDS
                    self._pending = (call_now if short else thread.submit)(self._commit, computed, previous)
                    began = time.monotonic()
            except RoundweaveError:
                yield from self._awaited()
                raise
            yield from self._awaited()

    def _awaited(self) -> Iterator[Commit]:
        """Yield the commit that is under way, if there is one, once it is done."""
        if self._pending is not None:
            commit, self._pending = self._pending.result(), None
            yield commit

    def _commit(self, computed: Computed, previous: Commit | None) -> Commit:
        held = computed.outcome.state.round == self.held
        commit = commit_round(self.job, computed, previous, closing=False, held=held)
        self.notify(commit.round)
        return commit
