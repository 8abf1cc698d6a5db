"""Maps of a block: read from the store what a map needs, store each update, and fold them.

The process that computes an update writes it, so it need not travel to be stored. The state that a map begins with
is read, or computed again from stored updates. Networks of the partitions' own are read, and averaged with those
of their neighbours.
"""

from __future__ import annotations

import functools
import operator
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from roundweave.storage.places.base import beside
from roundweave.storage.rounds.commits import Commit, UpdateRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Vectors, specs_bytes
from roundweave.tasks.algorithms.algebra import OWN
from roundweave.tasks.data.loading import BlockExamples, Partition
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.numerics.devices import LARGE, trim_memory
from roundweave.tasks.numerics.fingerprints import check_fingerprint, check_sources, fingerprint, sources
from roundweave.tasks.numerics.pieces import accumulator
from roundweave.tasks.numerics.pinning import generators_kept
from roundweave.tasks.rounds.job import Job, Work
from roundweave.tasks.rounds.scorers import parts_of
from roundweave.tasks.rounds.steps import BlockResult, Given, Mapped, Outcome, fold_block, map_groups


def load_and_persist(job: Job, round: int, block: int) -> BlockExamples:
    """Load the examples of a block's partitions in a round, and store the split.

    Block 0 stores the partition of each example, unless the data came in partitions.
    """
    if block == 0:
        persist_split(job, round)
    return load_block(job, round, block)


def persist_split(job: Job, round: int) -> None:
    """Store the partition of each example in a round, unless the data came in partitions."""
    if not job.work.partitions.source.partitioned:
        _persist_split(job.attempt.open(), job.work.partitions, job.work.split(round))


@functools.lru_cache(maxsize=2)
def _persist_split(store: RoundStore, partitions: Partitions, number: int) -> None:
    """Store a split, once for all rounds of it: checking whether it is stored reads all of it."""
    store.splits.write(number, partitions.assignment)


def load_block(job: Job, round: int, block: int) -> BlockExamples:
    """Load the examples of a block's partitions in a round, and store nothing.

    The partitions in a round share the held-out examples of a whole data set.
    """
    plan, work, number = job.plan_of(round), job.work, job.work.split(round)
    examples = {
        p: Partition(
            work.partitions.load(number, p),
            parts_of(work.scorers, work.partitions, number, p, place, len(plan.taking_part)),
        )
        for place, p in zip(plan.places(block), plan.members(block), strict=True)
    }
    return RotatingExamples(work.partitions, number, examples) if work.rotating else examples


class RotatingExamples(dict[int, Partition]):
    """The block's examples of those partitions that a parameter server asks first. They score the network.

    Examples of any other partition are loaded under the split of a `number` whenever it computes.
    """

    def __init__(self, partitions: Partitions, number: int, first: BlockExamples) -> None:
        super().__init__(first)
        self.partitions, self.number = partitions, number

    def __missing__(self, partition: int) -> Partition:
        return Partition(self.partitions.load(self.number, partition))


Again = Callable[[Callable[[], Mapped]], Mapped]
"""Runs a map once more after it raised: in this process as `operator.call` does, or on another worker."""


Persist = Callable[[int, Mapped], Callable[[], UpdateRecord]]
"""Stores an update, given the round and the update.

It returns a function that waits until the update is written, and gives its record. Updates of neighbouring
partitions may be stored together, once the last of them is given.
"""


Carry = Callable[[int], Mapping[str, Vectors]]
"""Gives what a partition carries into a round, vectors (element,) by slot."""


def map_and_persist(
    job: Job, before: Outcome, data: BlockExamples, block: int, again: Again = operator.call
) -> BlockResult:
    """Map a block with the whole network, store its updates, and fold them.

    `again` maps a partition once more if its map raised.
    """
    carry = exchanging(job.work, before, partial(read_carry, job))
    mapped = map_twice(job, before.state, data, carry, again)
    with persisting(job, before.state.round + 1, data) as persist:
        return persist_and_fold(job, before.state.round + 1, block, mapped, persist)


def map_twice(
    job: Job,
    state: State,
    data: BlockExamples,
    carry: Carry,
    again: Again = operator.call,
    number: int | None = None,
) -> Iterator[Mapped]:
    """Map a block's partitions as `map_block` does. `again` maps a partition once more if its map raised."""
    for first in map_block(job, state, data, carry, number):
        mapped, partition = first, first.partition
        if first.raised:
            mapped = again(partial(map_again, job, state, (partition, data[partition], carry(partition)), number))
        yield replace(mapped, seconds=first.seconds, worker=first.worker)


@contextmanager
def persisting(job: Job, round: int, partitions: Iterable[int]) -> Iterator[Persist]:
    """Store a round's updates of these partitions in this context, each shard once it is complete.

    If updates are large or the store is far, they are stored during the next maps.
    """
    store = job.attempt.open()
    shard = store.schema.shard
    wanted = Counter(partition // shard for partition in partitions)
    shards: dict[int, list[Mapped]] = defaultdict(list)
    written: dict[int, Future[dict[int, UpdateRecord]]] = {}
    size = store.schema.state_bytes * max(wanted.values(), default=0)
    with beside(store.place, size if job.stores_update(round, None) else 0) as call:

        def persist(round: int, mapped: Mapped) -> Callable[[], UpdateRecord]:
            partition, number = mapped.partition, mapped.partition // shard
            shards[number].append(mapped)
            if len(shards[number]) == wanted[number]:
                written[number] = call(_persist, job, store, round, shards.pop(number))
            return lambda: written[number].result()[partition]

        yield persist


def map_block(
    job: Job, state: State, data: BlockExamples, carry: Carry, number: int | None = None
) -> Iterator[Mapped]:
    """Map a block's partitions from a state, as many at once as the mapper does.

    `data` are the examples of the partitions in the round, and `carry` gives what each carries. `number` is what
    the schedule counts. Needs no store.
    """
    for place in {job.work.partitions.placement.label(partition) for partition in data}:
        check_machine(job, place)
    began = time.perf_counter()
    with generators_kept():
        for group in map_groups(job.work, state, ((p, data[p], carry(p)) for p in data), number):
            seconds = (time.perf_counter() - began) / len(group)
            for mapped in group:
                yield replace(mapped, seconds=seconds, worker=this_worker())
            began = time.perf_counter()


def persist_and_fold(
    job: Job, round: int, block: int, block_mapped: Iterable[Mapped], persist: Persist
) -> BlockResult:
    """Store the updates of a block's partitions, refuse unsound ones, and fold the others.

    Updates are stored if the job keeps them; then refused ones of the right shape are stored, too. A schedule gets
    updates as they are.
    """
    updates: dict[int, Update | None] = {}
    records: dict[int, Callable[[], UpdateRecord]] = {}
    for mapped in block_mapped:
        records[mapped.partition] = persist(round, mapped)
        updates[mapped.partition] = None if mapped.refused else mapped.update.received()
    if specs_bytes(job.work.objective.layout.params) >= LARGE:
        trim_memory()
    nodes = fold_block(job.work, round, job.plan_of(round).nodes(block), updates)
    return BlockResult(nodes, {partition: record() for partition, record in records.items()}, job.work.code)


def map_again(job: Job, state: State, given: Given, number: int | None) -> Mapped:
    """Map one partition once more, in the process that calls this."""
    check_machine(job, job.work.partitions.placement.label(given[0]))
    [[mapped]] = map_groups(job.work, state, [given], number)
    return mapped


@dataclass(frozen=True)
class Inputs:
    """The inputs of some partitions' maps: a state, what each carries, and a schedule's `number`."""

    state: State
    partitions: Sequence[int]
    carry: Carry
    number: int | None = None

    def read(self) -> Inputs:
        """Return the same inputs, with all carries in memory, so that they can be sent."""
        carries = {partition: self.carry(partition) for partition in self.partitions}
        return replace(self, carry=carries.__getitem__)

    def mapped(self, job: Job, data: BlockExamples) -> Iterator[Mapped]:
        """Map the partitions again; `data` are the examples of the block."""
        examples = {partition: data[partition] for partition in self.partitions}
        return map_block(job, self.state, examples, self.carry, self.number)


def recorded_inputs(
    job: Job, before: Outcome, commit: Commit, among: Sequence[int], read: Read, version: Callable[[int], State]
) -> Iterator[Inputs]:
    """Yield the inputs of the maps of partitions `among` those of a committed round, by the outcome before it.

    `version` gives the state after a round, from which an update of a schedule began.
    """
    carry = exchanging(job.work, before, read)
    if job.work.schedule:
        yield from job.work.schedule.inputs(job, commit, among, carry, version)
    else:
        yield Inputs(before.state, among, carry)


def check_machine(job: Job, at: str) -> None:
    """Raise `NumericsMismatch` if this machine, or its Roundweave, may compute other bits than the run.

    `at` is a place of partitions, or `STORE`. The run may have a fingerprint for each.
    """
    work, where = job.work, f"worker process {os.getpid()} on {_host()}"
    if work.sources:
        check_sources(work.sources, sources(work.all_code), where)
    expected = work.fingerprints.get(at, work.fingerprint)
    if expected is not None:
        check_fingerprint(expected, fingerprint(work.mapper.device), f"{where} at {at}" if at else where)


def read_carry(job: Job, source: int | None, partition: int) -> Mapping[str, Vectors]:
    """Return what a partition carried away from round `source`, vectors (element,) by slot; empty for no round."""
    return {} if source is None else job.attempt.open().tensors.read_carry(source, partition)


def _persist(job: Job, store: RoundStore, round: int, shard: Sequence[Mapped]) -> dict[int, UpdateRecord]:
    """Write those updates of a shard that the job stores, and return the records of all, by partition.

    Nothing is written of a round that was committed before without the updates that came too late.
    """
    stored = {each.partition: each.update for each in shard if job.stores_update(round, each.refused)}
    if job.waits_for_all or not store.log.has(round):
        store.tensors.write_updates(round, stored)
    return {each.partition: record_of(each, each.partition in stored) for each in shard}


def record_of(mapped: Mapped, stored: bool = True, digest: str = "") -> UpdateRecord:
    """Return the commit's record of an update. The digest of a `stored` one is computed unless it is given."""
    if not digest and (stored or not mapped.update.direction):
        digest = update_digest(mapped.update)
    return UpdateRecord(
        digest=digest,
        weight=mapped.update.weight,
        refused=mapped.refused,
        metrics={name: float(value) for name, value in mapped.update.metrics.items()},
        seconds=mapped.seconds,
        worker=mapped.worker,
    )


def this_worker() -> str:
    """Return the name of this process in records: its machine and its number there."""
    return f"{_host()}:{os.getpid()}"


@functools.cache
def _host() -> str:
    return socket.gethostname()


Read = Callable[[int | None, int], Mapping[str, Vectors]]
"""Gives what a partition carried away from a round, vectors (element,) by slot; empty if the round is None."""


NEIGHBOURS = 4
"""The most networks of neighbours that a process holds while it averages those of a block's partitions."""


def exchanging(work: Work, before: Outcome, read: Read) -> Carry:
    """Return what gives each partition's carry into the next round.

    Without a mixing it is what the partition carried away from a round before. With a mixing its network is the
    weighted sum of its neighbours' and its own. A partition that has carried nothing yet counts with the
    parameters of the state.
    """
    # Neighbours in a ring or grid are read again for the partitions around them.
    return partial(_exchanged, work, before, functools.lru_cache(NEIGHBOURS)(read) if work.mixing else read)


def _exchanged(work: Work, before: Outcome, read: Read, partition: int) -> Mapping[str, Vectors]:
    sources = before.carry_from
    carry = read(sources.get(partition), partition)
    if work.mixing is None or not sources:
        return carry
    exchange, partitions = work.before + before.state.round, work.partitions.split.partitions
    sums = {k: v.new_zeros(v.shape, dtype=accumulator(k)) for k, v in before.state.params.items()}
    for neighbour, weight in work.mixing.weights(partition, partitions, exchange).items():
        other = carry if neighbour == partition else read(sources.get(neighbour), neighbour)
        for name, vector in other.get(OWN, before.state.params).items():
            sums[name] += vector.to(accumulator(name)) * weight
    return {**carry, OWN: {name: sums[name].to(vector.dtype) for name, vector in before.state.params.items()}}
