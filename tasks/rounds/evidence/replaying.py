"""Replays rounds: runs the steps of a round again on stored values, and compares. Nothing is written.

The replay of a round needs the state before it, what its partitions carried, and its examples. It needs no replay
of another round: rounds are replayed in any order, or all at once. The first difference ends the replay of a
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar

import torch

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
from roundweave.tasks.rounds.evidence.results import Difference, RoundResult, record_difference, tensor_difference
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import Inputs, persist_and_fold, record_of, recorded_inputs
from roundweave.tasks.rounds.persistence.outcomes import read_outcome, reduce_recorded, supply
from roundweave.tasks.rounds.steps import BlockResult, Mapped, Outcome, fold_results

T = TypeVar("T")

Tensors = Mapping[str, torch.Tensor]

Replayed = BlockResult | RoundResult
"""A block's updates, mapped again; or the result of the round, if the replay has ended already."""


class Differs(Exception):
    """Raised at the first difference, which ends the replay of a round."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


def ending(step: Callable[..., T]) -> Callable[..., T | RoundResult]:
    """Let a step of a replay return the result of the round once the result is known.

    The result is the one that the step is given. Or the step finds a difference, fails, or needs what is damaged
    or no longer stored.
    """

    @wraps(step)
    def ended(job: Job, round: int, *given: Any) -> T | RoundResult:
        every = (one for each in given for one in (each if isinstance(each, list) else [each]))
        if known := next((one for one in every if isinstance(one, RoundResult)), None):
            return known
        try:
            return step(job, round, *given)
        except Differs as error:
            return RoundResult(round, error.difference)
        except RoundFailed as error:
            return RoundResult(round, Difference("round", said=f"it fails: {error}"))
        except StoreDamaged as error:
            return RoundResult(round, Difference("round", said=f"it is damaged: {error}"))
        except StoreError as error:
            return RoundResult(round, lacking=str(error))

    return ended


@ending
def replay_block(job: Job, round: int, data: BlockExamples, block: int) -> Replayed:
    """Map a block's partitions again, and fold the updates. `data` are the examples of partitions in the round."""
    return compare_block(job, round, _mapped(job, _inputs(job, round, block), data), block)


@ending
def read_inputs(job: Job, round: int, block: int) -> list[Inputs]:
    """Read the inputs of a block's maps, for a process that does not reach the store."""
    return [each.read() for each in _inputs(job, round, block)]


@ending
def map_inputs(job: Job, round: int, inputs: list[Inputs], data: BlockExamples) -> list[Mapped]:
    """Map partitions again from inputs that were read elsewhere. Needs no store."""
    return list(_mapped(job, inputs, data))


def _inputs(job: Job, round: int, block: int) -> Iterator[Inputs]:
    """Return the inputs of the maps of a block, but for the partitions whose map raised.

    The machine may decide whether a map raises, so maps that raised are taken from the record.
    """
    before, stored = _recorded(job, round)
    partitions = [p for p in _of_block(job, stored, block) if p in stored.updates.keys() - _raised(stored)]
    read, fetched = partial(_carry, job), partial(read_outcome, job)
    return recorded_inputs(job, before, stored, partitions, read, lambda version: fetched(version).state)


def _of_block(job: Job, stored: Commit, block: int) -> Sequence[int]:
    """Return the partitions of a block that a stored round asked; with a schedule those that the round took in."""
    if job.work.schedule is None:
        return job.plan_of(stored.round).members(block)
    return [partition for partition in stored.updates if job.plan.block_of(partition) == block]


def _mapped(job: Job, inputs: Iterable[Inputs], data: BlockExamples) -> Iterator[Mapped]:
    return (mapped for each in inputs for mapped in each.mapped(job, data))


@ending
def compare_block(job: Job, round: int, block_mapped: Iterable[Mapped], block: int) -> Replayed:
    """Compare updates with the stored ones, and fold them, or leave them as they are for a schedule."""
    stored = job.attempt.open().log.read(round)

    def compared(round: int, mapped: Mapped) -> Callable[[], UpdateRecord]:
        record = _record_of(job, mapped, stored)
        _compare_update(job, mapped, record, stored)
        return lambda: record

    result = persist_and_fold(job, round, block, block_mapped, compared)
    members = _of_block(job, stored, block)
    records = {p: replace(stored.updates[p], match=None) for p in _raised(stored) if p in members}
    return replace(result, records={**records, **result.records})


def _record_of(job: Job, mapped: Mapped, commit: Commit) -> UpdateRecord:
    """Return the record of an update, with a digest if the commit has a digest to compare."""
    stored, schedule = commit.updates.get(mapped.partition), job.work.schedule
    record = record_of(mapped, stored is None or bool(stored.digest))
    return schedule.judged(job.work, record, stored) if schedule and stored else record


@ending
def fold_again(job: Job, round: int, blocks: list[Replayed]) -> Replayed:
    """Fold neighbouring blocks into one."""
    return fold_results(job.work, round, [block for block in blocks if isinstance(block, BlockResult)])


@ending
def replay_round(job: Job, round: int, blocks: list[Replayed]) -> RoundResult:
    """Reduce and apply a round's blocks again, and compare with the commit."""
    before, stored = _recorded(job, round)
    results = [block for block in blocks if isinstance(block, BlockResult)]
    after = reduce_recorded(job.work, before, stored, results)
    _compare_outcome(job, after, stored)
    return RoundResult(round, raised=_raised(stored))


def _recorded(job: Job, round: int) -> tuple[Outcome, Commit]:
    """Return the outcome before a round, and its commit."""
    store = supply(job.work, job.attempt.open())
    return read_outcome(job, round - 1), store.log.read(round)


def _raised(stored: Commit) -> tuple[int, ...]:
    """Return the partitions whose maps raised in training."""
    return tuple(partition for partition, record in stored.updates.items() if record.raised)


def _carry(job: Job, source: int | None, partition: int) -> Mapping[str, Vectors]:
    """Return what a partition carried away from a round, (element,) by slot. The update behind it is verified."""
    return {} if source is None else job.attempt.open().tensors.read_update(source, partition).carry


def _compare_update(job: Job, mapped: Mapped, record: UpdateRecord, commit: Commit) -> None:
    """Raise `Differs` if an update differs from the stored one, which is read only if the digests differ."""
    partition, layout, stored = mapped.partition, job.work.objective.layout, commit.updates.get(mapped.partition)
    if stored is None or mapped.raised or stored.digest == record.digest:
        if difference := record_difference(partition, record, stored):
            raise Differs(difference)
        return
    tensors, observes = job.attempt.open().tensors, job.work.algorithm.map.observes

    def read() -> Tensors:
        return update_tensors(tensors.read_update(commit, partition), layout, observes)

    _compare_tensors("update", update_tensors(mapped.update, layout, observes), read, partition)


def _compare_outcome(job: Job, after: Outcome, commit: Commit) -> None:
    """Raise `Differs` if a round's matches, the state after it, or its records differ from the stored ones."""
    tensors = job.attempt.open().tensors
    for partition, record in commit.updates.items():
        if partition not in after.records:
            raise Differs(Difference("update", partition, said="it is only stored"))
        if after.records[partition].match != record.match:
            now = match_tensors(after.matches[partition]) if partition in after.matches else {}
            match = partial(tensors.read_match, commit, partition)
            _compare_tensors("match", now, lambda: match_tensors(match()), partition)  # noqa: B023 - used at once
    named = after.state.named(job.work.objective.layout)
    digests = tensor_digests(named)
    for path in differing(commit.tensors, digests):
        now, there = {path: named[path]} if path in named else {}, [path] if path in commit.tensors else []
        _compare_tensors(path, now, lambda: {path: tensors.read_tensor(commit, path) for path in there})  # noqa: B023
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


def _compare_tensors(what: str, now: Tensors, read: Callable[[], Tensors], partition: int | None = None) -> None:
    """Raise `Differs` for tensors that are known to differ from the stored ones, which `read` gives."""
    try:
        difference = tensor_difference(now, read(), partition)
    except (StoreError, RoundFailed) as error:
        said = f"it is another one, and what is stored cannot be read: {error}"
        difference = Difference(what, partition, said=said)
    if difference is not None:
        raise Differs(difference)
