"""Replay rounds: run the steps of a round again on what is stored, and compare. Nothing is written.

The replay of a round needs the state before it, what its partitions carried, and its examples, but no replay of
another round: rounds are replayed in any order, or all at once. The first difference ends the replay of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

import torch

from roundweave.storage.errors import RoundFailed, StoreDamaged, StoreError
from roundweave.storage.rounds.commits import Commit, InFlight, UpdateRecord
from roundweave.storage.values.digests import (
    differing,
    match_tensors,
    state_digest,
    tensor_digests,
    update_digest,
    update_tensors,
)
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.rounds.asynchronous.ledger import recorded_round
from roundweave.tasks.rounds.asynchronous.steps import (
    Pushed,
    map_version,
    recorded_push,
    rules,
    serve,
    server_before,
)
from roundweave.tasks.rounds.evidence.results import Difference, RoundResult, record_difference, tensor_difference
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import fold_round
from roundweave.tasks.rounds.persistence.exchanging import exchanged
from roundweave.tasks.rounds.persistence.mapping import read_outcome
from roundweave.tasks.rounds.steps import BlockResult, Mapped, Outcome, fold_block, map_groups, reduce_apply

T = TypeVar("T")

Tensors = Mapping[str, torch.Tensor]
"""Tensors, each (*shape), by path."""

Replayed = BlockResult | tuple[Pushed, ...]
"""A block's updates, mapped again: nodes of the tree over partitions, or their pushes to a parameter server."""


def replay_block(job: Job, round: int, data: BlockExamples, block: int) -> Replayed | RoundResult:
    """Map a block's partitions again, and fold the updates.

    `data` are the examples of those that take part. Returns a `RoundResult` if an update differs from the stored
    one or cannot be mapped.
    """

    def steps(before: Outcome, stored: Commit) -> Replayed | RoundResult:
        if stored.server is not None:
            return _pushed(job, before, stored, data, block)
        # Whether a map raises may depend on the machine, so maps that raised are taken from the record.
        records = {p: replace(stored.updates[p], match=None) for p in _raised(stored) if p in data}
        updates: dict[int, Update | None] = dict.fromkeys(records)
        given = (
            (partition, examples, exchanged(job.work, before, partition, partial(_carry, job)))
            for partition, examples in data.items()
            if partition not in records
        )
        for mapped in chain.from_iterable(map_groups(job.work, before.state, given)):
            partition, update = mapped.partition, mapped.update
            records[partition] = UpdateRecord(update_digest(update), update.weight, mapped.refused)
            if difference := _of_update(job, mapped, records[partition], stored):
                return RoundResult(round, difference)
            updates[partition] = None if mapped.refused else update
        nodes = fold_block(job.work, round, job.plan_of(round).nodes(block), updates)
        return BlockResult(nodes, records, job.work.code)

    return _with_records(job, round, steps)


def _pushed(
    job: Job, before: Outcome, stored: Commit, data: BlockExamples, block: int
) -> tuple[Pushed, ...] | RoundResult:
    """Map again what a block's partitions pushed in a round of a parameter server, each from its own version.

    Returns a `RoundResult` if an update differs or cannot be mapped.
    """
    pushed = list[Pushed]()
    for partition in (each for each in stored.updates if job.plan.block_of(each) == block):
        arrival = stored.updates[partition].arrival
        if arrival is None:
            return RoundResult(stored.round, Difference("arrival", partition, said="none is recorded"))
        if partition in _raised(stored):
            pushed.append(recorded_push(job.work, partition, stored.updates[partition], NOTHING))
            continue
        fetched, source = read_outcome(job, arrival.version).state, before.carry_from.get(partition)
        flight, carry = InFlight(arrival.push, arrival.version), _carry(job, source, partition)
        mapped = map_version(job.work, fetched, flight, partition, data[partition], carry)
        update = mapped.update
        record = UpdateRecord(update_digest(update), update.weight, mapped.refused)
        stale = rules(job.work).refusal(arrival.staleness)
        if difference := _of_update(job, mapped, replace(record, refused=record.refused or stale), stored):
            return RoundResult(stored.round, difference)
        pushed.append(Pushed(partition, update, record, code=job.work.code))
    return tuple(pushed)


def fold_again(job: Job, round: int, blocks: Sequence[Replayed | RoundResult]) -> Replayed | RoundResult:
    """Fold neighbouring blocks into one. If a block has a `RoundResult` already, that is returned."""
    for block in blocks:
        if isinstance(block, RoundResult):
            return block
    try:
        return fold_round(job, round, [block for block in blocks if isinstance(block, BlockResult)])
    except RoundFailed as error:
        return RoundResult(round, Difference("round", said=f"it fails: {error}"))


def replay_round(job: Job, round: int, blocks: Sequence[Replayed | RoundResult]) -> RoundResult:
    """Reduce and apply a round's blocks again, and compare with the commit.

    If a block has a `RoundResult` already, that is the result of the round.
    """
    for block in blocks:
        if isinstance(block, RoundResult):
            return block

    def steps(before: Outcome, stored: Commit) -> RoundResult:
        if stored.server is None:
            folded = [block for block in blocks if isinstance(block, BlockResult)]
            after = reduce_apply(job.work, before, folded)
        else:
            recorded = recorded_round(server_before(job.work, before.server), stored)
            pushed = {each.partition: each for block in blocks if isinstance(block, tuple) for each in block}
            after = serve(job.work, before, recorded, [pushed[partition] for partition in recorded.partitions])
        return RoundResult(round, _of_outcome(job, after, stored), raised=_raised(stored))

    return _with_records(job, round, steps)


def _with_records(job: Job, round: int, steps: Callable[[Outcome, Commit], T]) -> T | RoundResult:
    """Call `steps` with the outcome before a round and its commit.

    If a step fails, or something is damaged or no longer stored, a `RoundResult` says so.
    """
    try:
        return steps(read_outcome(job, round - 1), job.attempt.open().log.read(round))
    except RoundFailed as error:
        return RoundResult(round, Difference("round", said=f"it fails: {error}"))
    except StoreDamaged as error:
        return RoundResult(round, Difference("round", said=f"it is damaged: {error}"))
    except StoreError as error:
        return RoundResult(round, lacking=str(error))


def _raised(stored: Commit) -> tuple[int, ...]:
    """The partitions whose maps raised in training."""
    return tuple(partition for partition, record in stored.updates.items() if record.raised)


def _carry(job: Job, source: int | None, partition: int) -> Mapping[str, Vectors]:
    """What a partition carried away from a round, (element,) by slot; the update that has it is verified."""
    return {} if source is None else job.attempt.open().tensors.read_update(source, partition).carry


def _of_update(job: Job, mapped: Mapped, record: UpdateRecord, commit: Commit) -> Difference | None:
    """How an update differs from the stored one, None if it does not; it is read only if the digests differ."""
    partition, layout = mapped.partition, job.work.objective.layout

    def read() -> Tensors:
        return update_tensors(job.attempt.open().tensors.read_update(commit, partition), layout)

    stored = commit.updates.get(partition)
    if stored is None or mapped.raised or stored.digest == record.digest:
        return record_difference(partition, record, stored)
    return _against_stored("update", update_tensors(mapped.update, layout), read, partition)


def _of_outcome(job: Job, after: Outcome, commit: Commit) -> Difference | None:
    """How a round's matches, the state after it, or its records differ from the stored ones, or None."""
    of_matches = (_of_match(job, after, commit, partition) for partition in commit.updates)
    if difference := next(filter(None, of_matches), None) or _of_state(job, after.state, commit):
        return difference
    pairs: list[tuple[str, int | None, object, object]] = [
        ("arrival", partition, record.arrival, commit.updates[partition].arrival)
        for partition, record in after.records.items()
    ]
    pairs += [("server", None, after.server, commit.server)]
    pairs += [("carry_from", None, dict(after.carry_from), dict(commit.carry_from))]
    differences = (
        Difference(word, p, said=f"{now} instead of {then}") for word, p, now, then in pairs if now != then
    )
    return next(differences, None)


def _of_match(job: Job, after: Outcome, commit: Commit, partition: int) -> Difference | None:
    def read() -> Tensors:
        return match_tensors(job.attempt.open().tensors.read_match(commit, partition))

    if partition not in after.records:
        return Difference("update", partition, said="it is only stored")
    if after.records[partition].match == commit.updates[partition].match:
        return None
    now = after.matches.get(partition)
    return _against_stored("match", match_tensors(now) if now else {}, read, partition)


def _of_state(job: Job, state: State, commit: Commit) -> Difference | None:
    named = state.named(job.work.objective.layout)
    digests = tensor_digests(named)
    path = next(differing(commit.tensors, digests), None)
    if path is None:
        same = state_digest(digests, state.round) == commit.state
        return None if same else Difference("state", said="its record contradicts itself")

    def read() -> Tensors:
        return {path: job.attempt.open().tensors.read_tensor(commit, path)} if path in commit.tensors else {}

    return _against_stored(path, {path: named[path]} if path in named else {}, read)


def _against_stored(
    what: str, now: Tensors, read: Callable[[], Tensors], partition: int | None = None
) -> Difference | None:
    """The first tensor that differs from the stored ones, which `read` gets; if it cannot, `what` differs."""
    try:
        return tensor_difference(now, read(), partition)
    except StoreError as error:
        return Difference(what, partition, said=f"it is another one, and what is stored cannot be read: {error}")
