"""Replaying rounds: the steps again, on what is stored; nothing is kept of them.

A round needs the state before it, what its partitions carried, and its examples, but no other round: rounds are
replayed in any order, and all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from storage.errors import RoundFailed, StoreDamaged, StoreError
from storage.rounds.commits import Commit, Hand, UpdateRecord
from storage.values.digests import (
    differing,
    match_tensors,
    state_digest,
    tensor_digests,
    update_digest,
    update_tensors,
)
from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.arrivals.ledger import recorded_intake, standing
from tasks.arrivals.serving import Pushed, map_turn, recorded_push, rules, serve
from tasks.data.partitions import Partition
from tasks.evidence.verdicts import Difference, Verdict, record_difference, tensor_difference
from tasks.persistence.committing import fold_round, read_outcome
from tasks.rounds.guard import LEFT_OUT, NOTHING
from tasks.rounds.job import Job
from tasks.rounds.steps import BlockResult, Mapped, Outcome, fold_block, map_block, reduce_apply

T = TypeVar("T")


Again = BlockResult | tuple[Pushed, ...]
"""A block's updates, made again: nodes of the tree over partitions, or what they pushed to a server."""


def replay_block(job: Job, round: int, data: Sequence[Partition], block: int) -> Again | Verdict:
    """Map a block's partitions again, and fold what can be folded; the verdict where an update is another one."""

    def again(before: Outcome, stored: Commit) -> Again | Verdict:
        if stored.server is not None:
            return _turns_again(job, before, stored, data, block)
        span = job.plan.span(block)
        # Whether a map raises may depend on where it is: that it did is taken from the record.
        records = {p: replace(stored.updates[p], match=None) for p in _raised(stored) if p in span}
        updates: dict[int, Update | None] = dict.fromkeys(records)
        mapping = [partition for partition in span if partition not in records]
        carries = (_carry(job, before, partition) for partition in mapping)
        examples = (data[partition - span.start] for partition in mapping)
        for mapped in map_block(job.work, before.state, mapping, examples, carries):
            partition, update = mapped.partition, mapped.update
            refused = mapped.refused or _left_out(stored, partition)
            records[partition] = UpdateRecord(update_digest(update), update.weight, refused)
            if difference := _of_update(job, mapped, records[partition], stored):
                return Verdict(round, difference)
            updates[partition] = None if refused else update
        nodes = fold_block(job.work, round, job.plan.nodes(block), updates)
        return BlockResult(nodes, records, job.work.code)

    return _judged(job, round, again)


def _turns_again(
    job: Job, before: Outcome, stored: Commit, data: Sequence[Partition], block: int
) -> tuple[Pushed, ...] | Verdict:
    """The turns of a block's partitions whose updates landed in a round, each from the row that it began from."""
    span, pushed = job.plan.span(block), list[Pushed]()
    for partition in filter(span.__contains__, stored.updates):
        arrival = stored.updates[partition].arrival
        if arrival is None:
            return Verdict(stored.round, lacking="its updates came to the server of another run")
        if partition in _raised(stored):
            pushed.append(recorded_push(job.work, partition, stored.updates[partition], NOTHING))
            continue
        fetched = read_outcome(job, arrival.began).state
        hand, carry = Hand(arrival.turn, arrival.began), _carry(job, before, partition)
        mapped = map_turn(job.work, fetched, hand, partition, data[partition - span.start], carry)
        digest, update = update_digest(mapped.update), mapped.update
        push = Pushed(partition, update, UpdateRecord(digest, update.weight, mapped.refused), code=job.work.code)
        stale = rules(job.work).refusal(arrival.staleness)
        record = replace(push.record, refused=push.record.refused or stale)
        if difference := _of_update(job, mapped, record, stored):
            return Verdict(stored.round, difference)
        pushed.append(push)
    return tuple(pushed)


def fold_again(job: Job, round: int, blocks: Sequence[Again | Verdict]) -> Again | Verdict:
    """What neighbouring blocks give, as one of them would; the verdict of a block stands."""
    equal = [block for block in blocks if isinstance(block, BlockResult)]
    if len(equal) < len(blocks):
        return next(block for block in blocks if isinstance(block, Verdict))
    try:
        return fold_round(job, round, equal)
    except RoundFailed as error:
        return Verdict(round, Difference("round", said=f"it fails: {error}"))


def replay_round(job: Job, round: int, blocks: Sequence[Again | Verdict]) -> Verdict:
    """Reduce and apply a round's blocks again, and compare what comes out; the verdict of a block stands."""
    equal: list[Again] = []
    for block in blocks:
        if isinstance(block, Verdict):
            return block
        equal.append(block)

    def again(before: Outcome, stored: Commit) -> Verdict:
        difference = _of_outcome(job, _reduced_again(job, before, stored, equal), stored)
        return Verdict(round, difference, raised=_raised(stored))

    return _judged(job, round, again)


def _reduced_again(job: Job, before: Outcome, stored: Commit, blocks: Sequence[Again]) -> Outcome:
    if stored.server is None:
        return reduce_apply(job.work, before, [block for block in blocks if isinstance(block, BlockResult)])
    intake = recorded_intake(standing(before.server, job.plan.partitions), stored)
    pushed = {each.partition: each for block in blocks if isinstance(block, tuple) for each in block}
    return serve(job.work, before, intake, [pushed[partition] for partition in intake.partitions])


def _judged(job: Job, round: int, again: Callable[[Outcome, Commit], T]) -> T | Verdict:
    """What a step gives from the round before and the record of this one; the verdict where one of them fails."""
    try:
        return again(read_outcome(job, round - 1), job.attempt.open().log.read(round))
    except RoundFailed as error:
        return Verdict(round, Difference("round", said=f"it fails: {error}"))
    except StoreDamaged as error:
        return Verdict(round, Difference("round", said=f"it is damaged: {error}"))
    except StoreError as error:
        return Verdict(round, lacking=str(error))


def _raised(stored: Commit) -> tuple[int, ...]:
    """The partitions whose maps raised when the round was made."""
    return tuple(partition for partition, record in stored.updates.items() if record.raised)


def _left_out(stored: Commit, partition: int) -> str | None:
    """The verdict on an update that was not to take part, sound or not: no map can tell."""
    record = stored.updates.get(partition)
    return LEFT_OUT if record and record.refused == LEFT_OUT else None


def _carry(job: Job, before: Outcome, partition: int) -> Mapping[str, Vectors]:
    """What a partition carried, (element,) by slot, verified with the update that it came with."""
    source = before.carry_from.get(partition)
    return {} if source is None else job.attempt.open().tensors.read_update(source, partition).carry


def _of_update(job: Job, mapped: Mapped, record: UpdateRecord, commit: Commit) -> Difference | None:
    """In what an update is not the stored one, which is read only where the digests differ."""
    partition, layout = mapped.partition, job.work.objective.layout

    def read() -> Mapping[str, torch.Tensor]:
        return update_tensors(job.attempt.open().tensors.read_update(commit, partition), layout)

    stored = commit.updates.get(partition)
    if stored is None or mapped.raised or stored.digest == record.digest:
        return record_difference(partition, record, stored)
    return _against_stored("update", update_tensors(mapped.update, layout), read, partition)


def _of_outcome(job: Job, after: Outcome, commit: Commit) -> Difference | None:
    """In what a round's matches, the state after it or its record are not the stored ones."""
    of_matches = (_of_match(job, after, commit, partition) for partition in commit.updates)
    if difference := next(filter(None, of_matches), None) or _of_state(job, after.state, commit):
        return difference
    if difference := _of_server(after, commit):
        return difference
    now, then = dict(after.carry_from), dict(commit.carry_from)
    return None if now == then else Difference("carry_from", said=f"{now} instead of {then}")


def _of_server(after: Outcome, commit: Commit) -> Difference | None:
    """In what updates arrived otherwise than is recorded, or the server stands elsewhere."""
    for partition, record in after.records.items():
        if record.arrival != (then := commit.updates[partition].arrival):
            return Difference("arrival", partition, said=f"{record.arrival} instead of {then}")
    if after.server == commit.server:
        return None
    return Difference("server", said=f"{after.server} instead of {commit.server}")


def _of_match(job: Job, after: Outcome, commit: Commit, partition: int) -> Difference | None:
    def read() -> Mapping[str, torch.Tensor]:
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
    store = job.attempt.open()
    return _against_stored(
        path,
        {path: named[path]} if path in named else {},
        lambda: {path: store.tensors.read_tensor(commit, path)} if path in commit.tensors else {},
    )


def _against_stored(
    what: str,
    now: Mapping[str, torch.Tensor],
    read: Callable[[], Mapping[str, torch.Tensor]],
    partition: int | None = None,
) -> Difference | None:
    """The first of the tensors, (*shape) by path, that is not as read; that they differ where none can be read."""
    try:
        return tensor_difference(now, read(), partition)
    except StoreError as error:
        return Difference(what, partition, said=f"it is another one, and what is stored cannot be read: {error}")
