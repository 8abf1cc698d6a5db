"""A parameter server in this process: partitions push in an order that is given, one at a time."""

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
    """An asynchronous run from a committed round on, with the states that partitions fetched and what they carry.

    A partition is mapped only when its push is due, so what is in flight at the end of a run was never computed.
    """

    def __init__(self, job: Job, round: int) -> None:
        self.job = job
        self.outcome = read_outcome(job, round)
        server = standing(self.outcome.server, job.plan.partitions)
        self._in_flight = server.in_flight
        versions = {item.version for item in self._in_flight.values()} - {round}
        earlier = {version: read_outcome(job, version).state for version in versions}
        self._fetched = {round: self.outcome.state} | earlier
        self._carries: dict[int, Mapping[str, Vectors]] = {}
        order = job.order or Seeded(job.work.seed)
        self._server_rounds = order.rounds(rules(job.work), round + 1, self._in_flight)

    def rounds(self, data: Sequence[Partition], last: int) -> Iterator[tuple[Outcome, list[Pushed]]]:
        """Yield the outcome of each round up to `last`, with the pushes that it applied.

        `data` are the examples of all partitions, in order.
        """
        for taken_in in islice(self._server_rounds, last - self.outcome.state.round):
            pushed = [self._push(partition, data[partition]) for partition in taken_in.partitions]
            self.outcome = serve(self.job.work, self.outcome, taken_in, pushed)
            self._carries |= {each.partition: each.carry for each in pushed}
            self._drop_old_versions()
            yield self.outcome, pushed

    def _push(self, partition: int, examples: Partition) -> Pushed:
        in_flight = self._in_flight[partition]
        carry = self._carries.get(partition)
        if carry is None:
            carry = read_carry(self.job, self.outcome.carry_from.get(partition), partition)
        return make_push(self.job, self._fetched[in_flight.version], in_flight, partition, examples, carry)

    def _drop_old_versions(self) -> None:
        """Forget the states that no push in flight began from, except the last one, which may still be fetched."""
        state, server = self.outcome.state, self.outcome.server
        assert server is not None
        self._in_flight = server.in_flight
        needed = {state.round, *(item.version for item in self._in_flight.values())}
        fetched = {**self._fetched, state.round: state}
        self._fetched = {version: state for version, state in fetched.items() if version in needed}
