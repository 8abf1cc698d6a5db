"""Replay rounds: run the steps of a round again on what is stored, and compare. Nothing is written.

The replay of a round needs the state before it, what its partitions carried, and its examples, but no replay of
another round: rounds are replayed in any order, or all at once. The first difference ends the replay of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from roundweave.storage.errors import RoundFailed, StoreDamaged, StoreError
from roundweave.storage.rounds.commits import Commit, InFlight, UpdateRecord
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
    map_version,
    recorded_push,
    rules,
    serve,
    server_before,
)
from roundweave.tasks.rounds.evidence.results import Difference, RoundResult, record_difference, tensor_difference
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import map_persist_fold, read_outcome, record_of
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

    def step() -> Replayed:
        before, stored = _recorded(job, round)
        if stored.server is not None:
            return _pushed(job, before, stored, data, block)
        # Whether a map raises may depend on the machine, so maps that raised are taken from the record.
        records = {p: replace(stored.updates[p], match=None) for p in _raised(stored) if p in data}
        given = {p: examples for p, examples in data.items() if p not in records}

        def compared(round: int, mapped: Mapped, seconds: float) -> Callable[[], UpdateRecord]:
            record = record_of(mapped, seconds)
            _compare_update(job, mapped, record, stored)
            return lambda: record

        carry = partial(_carry, job)
        result = map_persist_fold(job, before, given, block, carry, lambda mapped: mapped, compared)
        return replace(result, records={**records, **result.records})

    return _result(round, step)


def _pushed(job: Job, before: Outcome, stored: Commit, data: BlockExamples, block: int) -> tuple[Pushed, ...]:
    """Map again what a block's partitions pushed in a round of a parameter server, each from its own version."""
    pushed = list[Pushed]()
    for partition in (each for each in stored.updates if job.plan.block_of(each) == block):
        arrival = stored.updates[partition].arrival
        if arrival is None:
            raise Differs(Difference("arrival", partition, said="none is recorded"))
        if partition in _raised(stored):
            pushed.append(recorded_push(job.work, partition, stored.updates[partition], NOTHING))
            continue
        fetched, source = read_outcome(job, arrival.version).state, before.carry_from.get(partition)
        flight, carry = InFlight(arrival.push, arrival.version), _carry(job, source, partition)
        mapped = map_version(job.work, fetched, flight, (partition, data[partition], carry))
        record, stale = record_of(mapped, 0.0), rules(job.work).refusal(arrival.staleness)
        _compare_update(job, mapped, replace(record, refused=record.refused or stale), stored)
        pushed.append(Pushed(partition, mapped.update, record, code=job.work.code))
    return tuple(pushed)


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
    return read_outcome(job, round - 1), job.attempt.open().log.read(round)


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
    with _another("update", partition):
        update = job.attempt.open().tensors.read_update(commit, partition)
        then = update_tensors(update, layout)
    _raise(tensor_difference(update_tensors(mapped.update, layout), then, partition))


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
    except StoreError as error:
        said = f"it is another one, and what is stored cannot be read: {error}"
        raise Differs(Difference(what, partition, said=said)) from None


def _raise(difference: Difference | None) -> None:
    if difference is not None:
        raise Differs(difference)
