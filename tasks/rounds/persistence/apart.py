"""Steps of rounds whose maps run out of reach of the store.

Processes that reach the store read what maps need, and write what maps give. The steps are the same as elsewhere,
and so are the bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from roundweave.storage.values.state import State
from roundweave.storage.values.tensors import Slots, Vectors, tensor_bytes
from roundweave.tasks.algorithms.algebra import says
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.rounds.job import STORE, Job
from roundweave.tasks.rounds.persistence.committing import own_params
from roundweave.tasks.rounds.persistence.mapping import (
    check_machine,
    exchanging,
    map_twice,
    persist_and_fold,
    persisting,
    read_carry,
)
from roundweave.tasks.rounds.scoring import Tally
from roundweave.tasks.rounds.steps import BlockResult, Mapped, Outcome, score_block


def state_to_map(job: Job, outcome: Outcome) -> State:
    """Return what a map needs of a state, without the frozen parameters, which are sent only once."""
    check_machine(job, STORE)
    map, memory = job.work.algorithm.map, outcome.state.memory
    if says(map, "reads_extras_alone"):
        memory = {slot: vectors for slot, vectors in memory.items() if slot in map.extras}
    return replace(outcome.state, memory=memory, frozen={})


def read_frozen(job: Job) -> Vectors:
    """Return the frozen parameters, (element,) by dtype."""
    store = job.attempt.open()
    return store.tensors.read_state(store.log.read(0)).frozen


def read_carries(job: Job, before: Outcome, block: int) -> Mapping[int, Slots]:
    """Return what the partitions of a block carry into the next round, vectors (element,) by slot."""
    carry = exchanging(job.work, before, partial(read_carry, job))
    members = job.plan_of(before.state.round + 1).members(block)
    return {partition: carry(partition) for partition in members}


def map_apart(
    job: Job, state: State, frozen: Vectors, carries: Mapping[int, Slots], data: BlockExamples
) -> list[Mapped]:
    """Map a block's partitions. A partition whose map raises is mapped once more, here.

    `carries` has what partitions carry, vectors (element,) by slot. It is empty if the map carries nothing.
    Metrics report the bytes that were received for each partition, without frozen parameters, and the bytes that
    are sent.
    """
    received, state = tensor_bytes(state), replace(state, frozen=frozen)

    def carry(partition: int) -> Slots:
        return carries.get(partition, {})

    mapped = map_twice(job, state, data, carry)
    told = (with_bytes(each, received + tensor_bytes(carry(each.partition))) for each in mapped)
    return [replace(each, update=each.update.to_send()) for each in told]


def with_bytes(mapped: Mapped, received: int) -> Mapped:
    """Return a result with metrics of the bytes that were received for it, and that are sent of it."""
    sent = tensor_bytes(mapped.update.to_send())
    metrics = {**mapped.update.metrics, "received_bytes": received, "sent_bytes": sent}
    return replace(mapped, update=replace(mapped.update, metrics=metrics))


def persist_apart(job: Job, round: int, mapped: Sequence[Mapped], block: int) -> BlockResult:
    """Store and fold the updates of a block that were mapped elsewhere."""
    received = (replace(each, update=each.update.received()) for each in mapped)
    with persisting(job, round, [each.partition for each in mapped]) as persist:
        return persist_and_fold(job, round, block, received, persist)


def read_own(job: Job, after: Outcome, block: int) -> Mapping[int, Vectors]:
    """Return the parameters of each partition's own network after a round, (element,) by dtype."""
    own = own_params(job.work, job.attempt.open, after)
    assert own is not None
    return {partition: own(partition) for partition in job.plan_of(after.state.round).members(block)}


def score_apart(
    job: Job, state: State, frozen: Vectors, own: Mapping[int, Vectors] | None, data: BlockExamples
) -> list[Tally]:
    """Score the state after a round on what a block scores."""
    parts = {partition: each.scored for partition, each in data.items()}
    return score_block(job.work, replace(state, frozen=frozen), parts, None if own is None else own.__getitem__)
