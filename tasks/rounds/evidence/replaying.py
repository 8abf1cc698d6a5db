"""Replay rounds: run the steps of a round again on what is stored, and compare. Nothing is written.

The replay of a round needs the state before it, what its partitions carried, and its examples, but no replay of
another round: rounds are replayed in any order, or all at once. The first difference ends the replay of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from roundweave.storage.errors import RoundFailed, StoreDamaged, StoreError
from roundweave.storage.rounds.commits import Commit, UpdateRecord
from roundweave.storage.values.digests import (
    differing,
    match_tensors,
    state_digest,
    tensor_digests,
    update_tensors,
)
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.rounds.asynchronous.orders import recorded_round
from roundweave.tasks.rounds.asynchronous.steps import (
    Pushed,
    recorded_push,
    rules,
    serve,
    server_before,
)
from roundweave.tasks.rounds.evidence.results import Difference, RoundResult, record_difference, tensor_difference
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import Inputs, persist_and_fold, record_of, recorded_inputs
from roundweave.tasks.rounds.persistence.recomputing import read_outcome, recomputing
from roundweave.tasks.rounds.steps import BlockResult, Mapped, Outcome, fold_results, reduce_apply

T = TypeVar("T")

Replayed = BlockResult | tuple[Pushed, ...] | RoundResult
"""A block's updates, mapped again: nodes of the tree over partitions, or their pushes to a parameter server.

Or the result of the round, where the replay has ended already.
"""


class Differs(Exception):
    """Raised at the first difference, which ends the replay of a round."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


def replay_block(job: Job, round: int, data: BlockExamples, block: int) -> Replayed:
    """Map a block's partitions again, and fold the updates. `data` are the examples of those that take part."""
    return _result(round, lambda: _compared(job, round, _mapped(job, _inputs(job, round, block), data), block))


def read_inputs(job: Job, round: int, block: int) -> Sequence[Inputs] | RoundResult:
    """Read what a block's partitions were mapped from, for a process that does not reach the store."""
    return _result(round, lambda: [each.read() for each in _inputs(job, round, block)])


def map_inputs(
    job: Job, round: int, inputs: Sequence[Inputs] | RoundResult, data: BlockExamples
) -> Sequence[Mapped] | RoundResult:
    """Map partitions again that were read elsewhere; needs no store."""
    if isinstance(inputs, RoundResult):
        return inputs
    return _result(round, lambda: list(_mapped(job, inputs, data)))


def compare_block(job: Job, round: int, mapped: Sequence[Mapped] | RoundResult, block: int) -> Replayed:
    """Compare the updates of a block, which were mapped again elsewhere, with the stored ones, and fold them."""
    if isinstance(mapped, RoundResult):
        return mapped
    return _result(round, lambda: _compared(job, round, mapped, block))


def _inputs(job: Job, round: int, block: int) -> Iterator[Inputs]:
    """What the partitions of a block were mapped from, but for those whose map raised.

    Whether a map raises may depend on the machine, so maps that raised are taken from the record.
    """
    before, stored = _recorded(job, round)
    members = job.plan_of(round).members(block) if stored.server is None else _of_block(job, stored, block)
    mapped = [partition for partition in members if partition in stored.updates.keys() - _raised(stored)]
    for partition in mapped if stored.server is not None else ():
        if stored.updates[partition].arrival is None:
            raise Differs(Difference("arrival", partition, said="none is recorded"))
    read = partial(_carry, job)
    return recorded_inputs(job, before, stored, mapped, read, lambda version: read_outcome(job, version).state)


def _of_block(job: Job, stored: Commit, block: int) -> list[int]:
    """The partitions of a block whose pushes a parameter server's round took, in the order of the record."""
    return [partition for partition in stored.updates if job.plan.block_of(partition) == block]


def _mapped(job: Job, inputs: Iterable[Inputs], data: BlockExamples) -> Iterator[Mapped]:
    return (mapped for each in inputs for mapped in each.mapped(job, data))


def _compared(job: Job, round: int, block_mapped: Iterable[Mapped], block: int) -> Replayed:
    """Compare updates with the stored ones, and fold them, or make them pushes to a parameter server."""
    stored = job.attempt.open().log.read(round)
    if stored.server is not None:
        return _pushed(job, stored, {mapped.partition: mapped for mapped in block_mapped}, block)

    def compared(round: int, mapped: Mapped) -> Callable[[], UpdateRecord]:
        record = _record_of(mapped, stored)
        _compare_update(job, mapped, record, stored)
        return lambda: record

    result = persist_and_fold(job, round, block, block_mapped, compared)
    members = job.plan_of(round).members(block)
    records = {p: replace(stored.updates[p], match=None) for p in _raised(stored) if p in members}
    return replace(result, records={**records, **result.records})


def _pushed(job: Job, stored: Commit, mapped: Mapping[int, Mapped], block: int) -> tuple[Pushed, ...]:
    """What a block's partitions pushed in a round of a parameter server, compared with what is stored."""
    pushed = list[Pushed]()
    for partition in _of_block(job, stored, block):
        recorded = stored.updates[partition]
        if partition not in mapped:
            pushed.append(recorded_push(job.work, partition, recorded, NOTHING))
            continue
        record, arrival = _record_of(mapped[partition], stored), recorded.arrival
        stale = rules(job.work).refusal(arrival.staleness) if arrival else None
        _compare_update(job, mapped[partition], replace(record, refused=record.refused or stale), stored)
        pushed.append(Pushed(partition, mapped[partition].update.received(), record, code=job.work.code))
    return tuple(pushed)


def _record_of(mapped: Mapped, commit: Commit) -> UpdateRecord:
    """The record of an update, with a digest if the commit has one to compare it with."""
    stored = commit.updates.get(mapped.partition)
    return record_of(mapped, stored is None or bool(stored.digest))


def fold_again(job: Job, round: int, blocks: Sequence[Replayed]) -> Replayed:
    """Fold neighbouring blocks into one."""
    folded = [block for block in blocks if isinstance(block, BlockResult)]
    return _result(round, lambda: fold_results(job.work, round, folded), blocks)


def replay_round(job: Job, round: int, blocks: Sequence[Replayed]) -> RoundResult:
    """Reduce and apply a round's blocks again, and compare with the commit."""

    def step() -> RoundResult:
        before, stored = _recorded(job, round)
        if stored.server is None:
            after = reduce_apply(job.work, before, [block for block in blocks if isinstance(block, BlockResult)])
        else:
            recorded = recorded_round(server_before(job.work, before.server), stored)
            pushed = {each.partition: each for block in blocks if isinstance(block, tuple) for each in block}
            after = serve(job.work, before, recorded, [pushed[partition] for partition in recorded.partitions])
        _compare_outcome(job, after, stored)
        return RoundResult(round, raised=_raised(stored))

    return _result(round, step, blocks)


def _recorded(job: Job, round: int) -> tuple[Outcome, Commit]:
    """The outcome before a round, and its commit."""
    store = recomputing(job.work, job.attempt.open())
    return read_outcome(job, round - 1), store.log.read(round)


def _result(round: int, step: Callable[[], T], blocks: Sequence[Replayed] = ()) -> T | RoundResult:
    """What a step of a replay gives.

    It is a `RoundResult` if one of the `blocks` is one already, or if the step finds a difference, fails, or needs
    what is damaged or no longer stored.
    """
    for block in blocks:
        if isinstance(block, RoundResult):
            return block
    try:
        return step()
    except Differs as error:
        return RoundResult(round, error.difference)
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


def _compare_update(job: Job, mapped: Mapped, record: UpdateRecord, commit: Commit) -> None:
    """Raise `Differs` if an update differs from the stored one, which is read only if the digests differ."""
    partition, layout, stored = mapped.partition, job.work.objective.layout, commit.updates.get(mapped.partition)
    if stored is None or mapped.raised or stored.digest == record.digest:
        _raise(record_difference(partition, record, stored))
        return
    observes = job.work.algorithm.map.observes
    with _another("update", partition):
        update = job.attempt.open().tensors.read_update(commit, partition)
        then = update_tensors(update, layout, observes)
    _raise(tensor_difference(update_tensors(mapped.update, layout, observes), then, partition))


def _compare_outcome(job: Job, after: Outcome, commit: Commit) -> None:
    """Raise `Differs` if a round's matches, the state after it, or its records differ from the stored ones."""
    tensors = job.attempt.open().tensors
    for partition, record in commit.updates.items():
        if partition not in after.records:
            raise Differs(Difference("update", partition, said="it is only stored"))
        if after.records[partition].match != record.match:
            now = match_tensors(after.matches[partition]) if partition in after.matches else {}
            with _another("match", partition):
                then = match_tensors(tensors.read_match(commit, partition))
            _raise(tensor_difference(now, then, partition))
    named = after.state.named(job.work.objective.layout)
    digests = tensor_digests(named)
    for path in differing(commit.tensors, digests):
        with _another(path):
            then = {path: tensors.read_tensor(commit, path)} if path in commit.tensors else {}
        _raise(tensor_difference({path: named[path]} if path in named else {}, then))
    if state_digest(digests, after.state.round) != commit.state:
        raise Differs(Difference("state", said="its record contradicts itself"))
    pairs: list[tuple[str, int | None, object, object]] = [
        ("arrival", partition, record.arrival, commit.updates[partition].arrival)
        for partition, record in after.records.items()
    ]
    pairs += [("server", None, after.server, commit.server)]
    pairs += [("carry_from", None, dict(after.carry_from), dict(commit.carry_from))]
    for word, of, again, stored in pairs:
        if again != stored:
            raise Differs(Difference(word, of, said=f"{again} instead of {stored}"))


@contextmanager
def _another(what: str, partition: int | None = None) -> Iterator[None]:
    """A context that reads what is known to differ; raises `Differs` if it cannot be read."""
    try:
        yield
    except (StoreError, RoundFailed) as error:
        said = f"it is another one, and what is stored cannot be read: {error}"
        raise Differs(Difference(what, partition, said=said)) from None


def _raise(difference: Difference | None) -> None:
    if difference is not None:
        raise Differs(difference)
