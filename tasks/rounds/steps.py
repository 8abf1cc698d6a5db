"""The steps of a round as pure functions: what every executor runs, in whatever process.

A `Job` holds all that they need besides tensors, so a step run again, elsewhere, gives the same bits.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from storage.errors import RoundFailed, RoundweaveError, one_line
from storage.rounds.commits import Commit, Score, UpdateRecord
from storage.rounds.store import RoundStore, open_store
from storage.values.digests import match_digest, update_digest
from storage.values.layout import Layout
from storage.values.state import Match, State, Update
from storage.values.tensors import Vectors
from tasks.algebra import Algorithm, Node
from tasks.data.examples import Examples, is_label
from tasks.data.partitions import Partition, Partitions
from tasks.networks.objective import Objective
from tasks.numerics import Fingerprint, check_fingerprint, fingerprint, pinned
from tasks.reduces.tree import fold
from tasks.rounds.guard import checked, misshapen, non_finite
from tasks.rounds.plan import RoundPlan

SCORE_BATCH = 1000
"""Held-out examples scored at once; part of the arithmetic, so it is fixed."""


@dataclass(frozen=True)
class Job:
    """A run as its steps see it; `token` names this attempt, `fingerprint` None accepts any machine."""

    store: str
    token: str
    epoch: int
    objective: Objective
    algorithm: Algorithm
    partitions: Partitions
    plan: RoundPlan
    rounds: int
    fingerprint: Fingerprint | None = None
    threads: int = 1
    quorum: int = 1
    evaluate_every: int = 1
    target_accuracy: float | None = None
    patience: int | None = None
    fsync: bool = False
    started: float = field(default_factory=time.time)

    def open(self) -> RoundStore:
        """The run's store, opened once per process."""
        return open_store(self.store, self.token, self.fsync)

    def split(self, round: int) -> int:
        """The number of the split that a round uses."""
        return self.partitions.split.number(round)

    def scored(self, round: int) -> bool:
        """Whether the network is scored after a round."""
        return round % self.evaluate_every == 0 or round == self.rounds


@dataclass(frozen=True)
class BlockResult:
    """What a block's map returns: nodes of the tree for the reduce, records of its updates for the commit."""

    nodes: Mapping[tuple[int, int], Node]
    records: Mapping[int, UpdateRecord]


@dataclass(frozen=True)
class Outcome:
    """The state after a round, what its commit says of the updates, and how the reduce matched their units.

    `carry_from` is as in `Commit`.
    """

    state: State
    records: Mapping[int, UpdateRecord] = field(default_factory=dict)
    carry_from: Mapping[int, int] = field(default_factory=dict)
    matches: Mapping[int, Match] = field(default_factory=dict)


@dataclass(frozen=True)
class Tally:
    """Sums over a partition's held-out examples; `right` is None where outputs are no classes."""

    loss: float
    right: int | None
    examples: int


def read_outcome(job: Job, round: int) -> Outcome:
    """The outcome of a committed round, verified."""
    store = job.open()
    return Outcome(store.read_state(round), carry_from=store.log.read(round).carry_from)


def load_block(job: Job, number: int, block: int) -> list[Partition]:
    """The examples of a block's partitions under a split."""
    return [job.partitions.load(number, partition) for partition in job.plan.span(block)]


def map_block(job: Job, before: Outcome, data: Sequence[Partition], block: int) -> BlockResult:
    """Map a block's partitions one after the other, store their updates, and merge what can be merged.

    Unsound updates are refused: they are stored where they have the right shape, but not merged.
    """
    if job.fingerprint is not None:
        check_fingerprint(
            job.fingerprint, fingerprint(), f"worker process {os.getpid()} on {socket.gethostname()}"
        )
    store, round = job.open(), before.state.round + 1
    updates: dict[int, Update] = {}
    records: dict[int, UpdateRecord] = {}
    for partition, examples in zip(job.plan.span(block), data, strict=True):
        began = time.perf_counter()
        source = before.carry_from.get(partition)
        carry = {} if source is None else store.read_carry(source, partition)
        found = _map_partition(job, before.state, examples, carry, round, partition)
        update, refused = checked(store.schema.layout, found, store.schema.carry, store.schema.extras)
        updates[partition] = update
        records[partition] = UpdateRecord(
            digest=update_digest(update),
            weight=update.weight,
            refused=refused,
            metrics={name: float(value) for name, value in update.metrics.items() if _is_number(value)},
            seconds=time.perf_counter() - began,
            worker=f"{socket.gethostname()}:{os.getpid()}",
        )
        store.write_update(round, partition, update)

    def leaf(first: int, last: int) -> Node | None:
        if last - first > 1:
            raise KeyError(first, last)
        return None if records[first].refused else updates[first]

    return BlockResult({node: fold(job.algorithm.reduce, node, leaf) for node in job.plan.nodes(block)}, records)


def _map_partition(
    job: Job, state: State, examples: Partition, carry: Mapping[str, Vectors], round: int, partition: int
) -> Update:
    seed = job.plan.map_seed(round, partition)
    try:
        with pinned(seed, job.threads):
            return job.algorithm.map(job.objective, state, examples.train, carry, seed)
    except RoundweaveError:
        raise
    except Exception as error:
        raise RoundFailed(
            f"round {round}: the map of partition {partition} failed with {one_line(error)}"
        ) from error


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError):
        return False


def _check_state(layout: Layout, state: State, round: int) -> None:
    for specs, vectors in ((layout.params, state.params), (layout.buffers, state.buffers)):
        reason = misshapen(specs, vectors) or non_finite(specs, vectors)
        if reason:
            raise RoundFailed(
                f"round {round}: the new state is unsound, {reason}. Rounds to {round - 1} are kept; "
                "try a smaller lr or outer lr"
            )


def reduce_apply(job: Job, before: Outcome, blocks: Sequence[BlockResult]) -> Outcome:
    """The next state; raises `RoundFailed` when fewer than the quorum of updates are sound."""
    records = dict(sorted((p, record) for block in blocks for p, record in block.records.items()))
    accepted = [partition for partition, record in records.items() if record.refused is None]
    round = before.state.round + 1
    if len(accepted) < job.quorum:
        partition, reason = next((p, record.refused) for p, record in records.items() if record.refused)
        raise RoundFailed(
            f"round {round}: {len(accepted)} of {len(records)} updates are sound, {job.quorum} needed; "
            f"partition {partition}: {reason}. Rounds to {round - 1} are kept; try a smaller lr, or check the data"
        )
    nodes = {node: value for block in blocks for node, value in block.nodes.items()}
    try:
        with pinned(job.plan.map_seed(round, -1), job.threads):
            root = fold(job.algorithm.reduce, job.plan.root, lambda first, last: nodes[first, last])
            reduced = job.algorithm.reduce.finish(before.state, root)
            state = job.algorithm.apply(before.state, reduced)
    except RoundweaveError:
        raise
    except Exception as error:
        raise RoundFailed(f"round {round}: the reduce or apply failed with {one_line(error)}") from error
    _check_state(job.open().schema.layout, state, round)
    carried = dict.fromkeys(accepted, round) if job.open().schema.carry else {}
    matches = dict(zip(accepted, reduced.matches, strict=False))
    records |= {p: replace(records[p], match=match_digest(match)) for p, match in matches.items()}
    return Outcome(state, records, dict(before.carry_from) | carried, matches)


def score_block(job: Job, after: Outcome, data: Sequence[Partition]) -> list[Tally]:
    """Score the network on the held-out examples of a block's partitions."""
    network = job.objective.network(after.state).eval()
    with torch.no_grad(), pinned(0, job.threads):
        return [tally(job.objective, network, partition.held_out) for partition in data]


def tally(objective: Objective, network: torch.nn.Module, held_out: Examples) -> Tally:
    """Sums of loss and of right classes over held-out examples, in batches of a fixed size."""
    loss, right = 0.0, 0
    classes = False
    for first in range(0, len(held_out), SCORE_BATCH):
        inputs = held_out.inputs[first : first + SCORE_BATCH]
        targets = held_out.targets[first : first + SCORE_BATCH]
        outputs = network(inputs)
        loss += objective.value(outputs, targets).item() * len(inputs)
        classes = outputs.ndim == 2 and is_label(targets)
        right += int((outputs.argmax(1) == targets).sum()) if classes else 0
    return Tally(loss, right if classes else None, len(held_out))


def score(tallies: Sequence[Tally]) -> Score | None:
    """Mean loss and accuracy, summed in the order of partitions; None where no partition has a loss."""
    tallies = [tally for tally in tallies if tally.examples and math.isfinite(tally.loss)]
    examples = sum(tally.examples for tally in tallies)
    if not examples:
        return None
    counts = [tally.right for tally in tallies if tally.right is not None]
    loss = sum(tally.loss for tally in tallies) / examples
    return Score(loss, {"accuracy": sum(counts) / examples} if counts else {}, examples)


def commit_round(job: Job, after: Outcome, tallies: Sequence[Sequence[Tally]], previous: Commit | None) -> Commit:
    """Store the state and make its round exist; does nothing once an earlier one of this attempt ended it."""
    store, state = job.open(), after.state
    previous = previous or store.log.read(state.round - 1)
    if previous.stop and previous.token == job.token:
        return previous
    if not store.log.has(state.round):
        store.write_state(state)
        for partition, match in after.matches.items():
            store.write_match(state.round, partition, match)
    now = time.time()
    commit = replace(
        store.describe(state, job.token, job.epoch),
        updates=after.records,
        carry_from=after.carry_from,
        score=score([tally for block in tallies for tally in block]),
        seconds=max(0.0, now - max(previous.time, job.started)),
        time=now,
    )
    return store.commit(_with_best(job, commit, previous))


def _with_best(job: Job, commit: Commit, previous: Commit) -> Commit:
    """Keep count of the best loss, and say so where the run ends here."""
    best, since_best = previous.best, previous.since_best
    if commit.score is not None:
        better = best is None or commit.score.loss < best
        best, since_best = (commit.score.loss, 0) if better else (best, since_best + 1)
    commit = replace(commit, best=best, since_best=since_best)
    return replace(commit, stop=stop_reason(job, commit))


def stop_reason(job: Job, commit: Commit) -> str | None:
    """Why the run ends with this round, None where it goes on."""
    accuracy = commit.score.accuracy if commit.score else None
    if job.target_accuracy is not None and accuracy is not None and accuracy >= job.target_accuracy:
        return f"accuracy {accuracy:.4f} has reached the target {job.target_accuracy}"
    if job.patience is not None and commit.since_best >= job.patience:
        return f"{commit.since_best} scores without a better loss than {commit.best:.6g}"
    return None
