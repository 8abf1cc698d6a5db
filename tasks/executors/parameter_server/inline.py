"""An asynchronous run as it goes on in this process: partitions take their turns in an order that is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from storage.values.tensors import Vectors
from tasks.asynchronous.ledger import standing
from tasks.asynchronous.orders import Seeded
from tasks.asynchronous.steps import Pushed, rules, serve
from tasks.data.partitions import Partition
from tasks.persistence.committing import read_carry, read_outcome
from tasks.persistence.pushes import make_push
from tasks.rounds.job import Job
from tasks.rounds.steps import Outcome


class Turns:
    """A run from a committed round on, with the states that partitions have fetched and what they carry.

    A turn is taken when its update lands: what is in hand at the end costs nothing.
    """

    def __init__(self, job: Job, round: int) -> None:
        self.job = job
        self.outcome = read_outcome(job, round)
        server = standing(self.outcome.server, job.plan.partitions)
        self._in_flight = server.in_flight
        rows = {item.version for item in self._in_flight.values()} - {round}
        self._fetched = {round: self.outcome.state} | {row: read_outcome(job, row).state for row in rows}
        self._carries: dict[int, Mapping[str, Vectors]] = {}
        order = job.order or Seeded(job.work.seed)
        self._intakes = order.rounds(rules(job.work), round + 1, self._in_flight)

    def rounds(self, data: Sequence[Partition], last: int) -> Iterator[tuple[Outcome, list[Pushed]]]:
        """The outcome of each round up to the last, and the updates that landed in it."""
        for taken_in in islice(self._intakes, last - self.outcome.state.round):
            pushed = [self._turn(partition, data[partition]) for partition in taken_in.partitions]
            self.outcome = serve(self.job.work, self.outcome, taken_in, pushed)
            self._carries |= {each.partition: each.carry for each in pushed}
            self._keep_fetched()
            yield self.outcome, pushed

    def _turn(self, partition: int, examples: Partition) -> Pushed:
        item = self._in_flight[partition]
        carry = self._carries.get(partition)
        if carry is None:
            carry = read_carry(self.job, self.outcome.carry_from.get(partition), partition)
        return make_push(self.job, self._fetched[item.version], item, partition, examples, carry)

    def _keep_fetched(self) -> None:
        """Keep the states from which turns in hand begin, and the last one, which may still be fetched."""
        state, server = self.outcome.state, self.outcome.server
        assert server is not None
        self._in_flight = server.in_flight
        rows = {state.round, *(item.version for item in self._in_flight.values())}
        self._fetched = {row: kept for row, kept in {**self._fetched, state.round: state}.items() if row in rows}
