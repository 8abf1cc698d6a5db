"""The schedule of a parameter server, whose rounds apply what has arrived, in each executor and in replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from roundweave.flows.plugins.parameter_server.orders import Order, recorded_round
from roundweave.flows.plugins.parameter_server.steps import carried, recorded_push, rules, serve, server_before
from roundweave.storage.errors import StoreDamaged
from roundweave.storage.rounds.commits import Commit, InFlight, UpdateRecord
from roundweave.storage.values.state import State
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import Job, Work
from roundweave.tasks.rounds.persistence.mapping import Inputs, Read
from roundweave.tasks.rounds.schedule import Schedule
from roundweave.tasks.rounds.steps import BlockResult, Outcome

if TYPE_CHECKING:
    from roundweave.flows.plugins.parameter_server.on_dask import DaskServer
    from roundweave.flows.plugins.parameter_server.server import OrderedServer


@dataclass(frozen=True)
class Arrivals(Schedule):
    """Updates are applied in the `order` in which they arrive; None leaves it to the executor."""

    order: Order | None = None

    counts: ClassVar[str] = "push"
    largest_window: ClassVar[int] = 1000

    def here(self, job: Job, round: int) -> OrderedServer:
        """A server in this process."""
        from roundweave.flows.plugins.parameter_server.server import OrderedServer

        return OrderedServer(job, round, self.order)

    def by_tasks(self, pool: Any, job: Job, round: int) -> DaskServer:
        """A server on Dask."""
        from roundweave.flows.plugins.parameter_server.on_dask import DaskServer

        return DaskServer(pool, job, round)

    def by_ranks(
        self, job: Job, round: int, rank: int, peers: Any, data: Any, halted: Callable[[], bool], again: Any
    ) -> Iterator[Any]:
        """Serve on the first rank, and map on the others."""
        from roundweave.flows.plugins.parameter_server.among_ranks import rounds_of_server

        return rounds_of_server(job, round, rank, peers, data, halted, again)

    def inputs(
        self,
        job: Job,
        before: Outcome,
        commit: Commit,
        partitions: Sequence[int],
        read: Read,
        version: Callable[[int], State],
    ) -> Iterator[Inputs]:
        """What each partition was mapped from: the version that it had fetched."""
        for partition in partitions:
            if (arrival := commit.updates[partition].arrival) is None:
                raise StoreDamaged(f"round {commit.round} has no record of how the push of {partition} arrived")
            carry = read(before.carry_from.get(partition), partition)
            own = carried(job.work, InFlight(arrival.push, arrival.version), carry)
            yield Inputs(version(arrival.version), [partition], {partition: own}.__getitem__, arrival.push)

    def judged(self, work: Work, record: UpdateRecord, recorded: UpdateRecord) -> UpdateRecord:
        """The record, refused if the update was too stale."""
        stale = rules(work).refusal(recorded.arrival.staleness) if recorded.arrival else None
        return replace(record, refused=record.refused or stale)

    def reduce(self, work: Work, before: Outcome, commit: Commit, blocks: Sequence[BlockResult]) -> Outcome:
        """Serve a committed round again; an update that no block has is that of a map which raised."""
        updates: dict[int, Any] = {p: each for block in blocks for (p, _), each in block.nodes.items()}
        records = {partition: record for block in blocks for partition, record in block.records.items()}
        taken_in = recorded_round(server_before(work, before.server), commit)
        pushed = [recorded_push(work, p, records[p], updates.get(p, NOTHING)) for p in taken_in.partitions]
        return serve(work, before, taken_in, pushed)
