"""The schedule of a parameter server, as the kernel knows it, and the server of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

from roundweave.flows.plugins.parameter_server import orders, steps
from roundweave.flows.plugins.parameter_server.server import ParameterServer
from roundweave.storage.errors import StoreDamaged
from roundweave.storage.rounds.commits import Commit, InFlight, UpdateRecord
from roundweave.storage.values.state import State
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.numerics.pinning import generators_kept
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import Job, Work
from roundweave.tasks.rounds.persistence.committing import Computed
from roundweave.tasks.rounds.persistence.mapping import Carry, Inputs
from roundweave.tasks.rounds.schedule import Schedule
from roundweave.tasks.rounds.steps import BlockResult, Outcome


@dataclass(frozen=True)
class Arrivals(Schedule):
    """Updates are applied in the `order` in which they arrive; None leaves it to the executor."""

    order: orders.Order | None = None

    largest_window: ClassVar[int] = 1000

    def here(self, job: Job, round: int) -> OrderedServer:
        """A server in this process."""
        return OrderedServer(job, round, self.order or orders.Seeded(job.work.seed))

    def by_tasks(self, pool: Any, job: Job, round: int) -> Any:
        """A server on Dask."""
        from roundweave.flows.plugins.parameter_server.on_dask import DaskServer

        return DaskServer(pool, job, round)

    def by_ranks(self, job: Job, round: int, *among: Any) -> Iterator[Computed]:
        """Serve on the first rank, and map on the others."""
        from roundweave.flows.plugins.parameter_server.among_ranks import rounds_of_server

        return rounds_of_server(job, round, *among)

    def inputs(
        self, job: Job, commit: Commit, among: Sequence[int], carry: Carry, version: Callable[[int], State]
    ) -> Iterator[Inputs]:
        """What each partition was mapped from: the version that it had fetched."""
        for partition in among:
            if (arrival := commit.updates[partition].arrival) is None:
                raise StoreDamaged(f"round {commit.round} has no record of how the push of {partition} arrived")
            own = steps.carried(job.work, InFlight(arrival.push, arrival.version), carry(partition))
            yield Inputs(version(arrival.version), [partition], {partition: own}.__getitem__, arrival.push)

    def judged(self, work: Work, record: UpdateRecord, recorded: UpdateRecord) -> UpdateRecord:
        """The record of an update that arrived as is recorded, and is refused if it was too stale."""
        stale = steps.rules(work).refusal(recorded.arrival.staleness) if recorded.arrival else None
        return replace(record, refused=record.refused or stale, arrival=recorded.arrival)

    def reduce(self, work: Work, before: Outcome, commit: Commit, blocks: Sequence[BlockResult]) -> Outcome:
        """Serve a committed round again; an update that no block has is that of a map which raised."""
        updates: dict[int, Any] = {p: each for block in blocks for (p, _), each in block.nodes.items()}
        records = {partition: record for block in blocks for partition, record in block.records.items()}
        taken_in = orders.recorded_round(steps.server_before(work, before.server), commit)
        pushed = [steps.recorded_push(work, p, records[p], updates.get(p) or NOTHING) for p in taken_in.partitions]
        return steps.serve(work, before, taken_in, pushed)


class OrderedServer:
    """A parameter server in this process, with a given order. A partition is mapped when its push is due.

    So what is in flight at the end of a run was never computed.
    """

    def __init__(self, job: Job, round: int, order: orders.Order) -> None:
        self._server = ParameterServer(job, round, lambda _kind, _number, _at, run, *given: run(job, *given))
        self._server.read_committed()
        self._rounds = order.rounds(self._server.when, round + 1, self._server.in_flight, steps.drawing(job.work))

    def rounds(self, data: BlockExamples, last: int) -> Iterator[Computed]:
        """Yield each round up to `last`. `data` are the examples of all partitions."""
        self._server.data = [data]
        self._server.settle()
        for taken_in in islice(self._rounds, last - self._server.round):
            with generators_kept():
                for partition in taken_in.partitions:
                    self._server.begin([partition])
                served = self._server.serve([taken_in], [list(map(self._server.take, taken_in.partitions))])
            self._server.in_flight = dict(served.outcomes[-1].server.in_flight)
            self._server.carry_from = served.outcomes[-1].carry_from
            yield from steps.computed_rounds(served)
