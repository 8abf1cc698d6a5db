"""Outcomes of committed rounds: read if they are stored, else computed again from the last stored state.

Rounds are computed again one by one, and checked. A round is reduced from its stored updates. Partitions whose
updates are not stored are mapped again.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.pruned import base_of
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.rounds.tensors import Contents
from roundweave.storage.values.digests import state_digest, tensor_digests
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots
from roundweave.tasks.data.loading import Partition
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.numerics.pinning import generators_kept
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import Attempt, Job, Work
from roundweave.tasks.rounds.persistence.mapping import recorded_inputs
from roundweave.tasks.rounds.steps import BlockResult, Outcome, fold_block, reduce_apply

LEFT_OUT = "left out when the round was reduced again"
"""The reason to refuse a sound update, if a round is reduced again without its partition."""

MOST = 3
"""The most recomputed rounds that a process remembers. Going through rounds in order then computes each once."""


@dataclass(frozen=True)
class Reached:
    """A committed round whose outcome is read or computed again, and what the next rounds need.

    `carries` has what partitions carried away since the last stored state, vectors (element,) by slot. `versions`
    are states that work in flight of a schedule began from, by round. `contents` are all results of the round;
    only the last round that was computed again has them.
    """

    outcome: Outcome
    carries: Mapping[int, Slots] = field(default_factory=dict)
    versions: Mapping[int, State] = field(default_factory=dict)
    contents: Contents | None = None


REMEMBERED: deque[tuple[str, Reached]] = deque(maxlen=MOST)
"""The last recomputed rounds, each with the chain of its record, which vouches for all rounds before it."""


HELD: dict[tuple[str, int], Outcome] = {}
"""The outcome that ended a window committed by this process, by the attempt's token and the round; at most one."""


def read_outcome(job: Job, round: int) -> Outcome:
    """Return the outcome of a committed round: what this process holds of it, else what is stored, verified.

    A held outcome is let go. An outcome whose state is not stored is computed again.
    """
    return HELD.pop((job.attempt.token, round), None) or outcome_of(job.work, job.attempt.open(), round)


def supply(work: Work, store: RoundStore) -> RoundStore:
    """Return the store, which from now on computes with some work what is not stored."""
    store.tensors.supply = partial(recompute, work, store)
    return store


def recompute(work: Work, store: RoundStore, round: int) -> Contents:
    """Return the results of a committed round, computed again from the round before. Raises as `outcome_of`."""
    reached = dict(REMEMBERED).get(store.log.chain(round))
    if reached is None or reached.contents is None:
        reached = _next(work, store, _reached(work, store, round - 1), store.log.read(round))
    assert reached.contents is not None
    return reached.contents


def rounds_to_compute(store: RoundStore, round: int) -> range:
    """Return the rounds that `recompute` would compute in this process: none if it remembers this round."""
    reached = dict(REMEMBERED).get(store.log.chain(round))
    if reached is not None and reached.contents is not None:
        return range(0)
    return range(_last_known(store, round - 1) + 1, round + 1)


def outcome_of(work: Work, store: RoundStore, round: int) -> Outcome:
    """Return the outcome of a committed round, verified, if needed computed again by the work that made it.

    Raises `RoundMissing`, `StoreDamaged` or `DataError` if something of this cannot be read, `NumericsMismatch` on
    another kind of machine, and `RoundFailed` if the result has another digest than the commit.
    """
    return _reached(work, store, round).outcome


def _reached(work: Work, store: RoundStore, round: int) -> Reached:
    known = _last_known(store, round)
    reached = _read(store, known)
    for later in range(known + 1, round + 1):
        reached = _next(work, store, reached, store.log.read(later))
    return reached


def _last_known(store: RoundStore, round: int) -> int:
    """Return the last round up to this one whose state is stored, or remembered by this process."""
    remembered = [
        n
        for chain, reached in REMEMBERED
        if (n := reached.outcome.state.round) <= round and (link := store.log.whole(n)) and link.chain == chain
    ]
    return max(base_of(store.log, store.tensors.pruned(), round), *remembered, 0)


def _read(store: RoundStore, round: int) -> Reached:
    """Return what is remembered of a round, or what is stored."""
    if reached := dict(REMEMBERED).get(store.log.chain(round)):
        return reached
    commit = store.log.read(round)
    return Reached(Outcome(store.tensors.read_state(commit), carry_from=commit.carry_from, server=commit.server))


@torch.inference_mode(False)  # the caller may have switched gradients off
@torch.enable_grad()
def _next(work: Work, store: RoundStore, before: Reached, commit: Commit) -> Reached:
    """Compute a round again from the one before. Raises `RoundFailed` if the result differs from the commit."""
    updates = _updates(work, store, before, commit)
    after = reduce_again(work, before.outcome, commit, updates)
    state, round = after.state, commit.round
    if state_digest(tensor_digests(state.named(work.objective.layout)), state.round) != commit.state:
        raise RoundFailed(
            f"round {round} of {store.place} is not stored, and computed again it has another state on this "
            "machine and with this code; go on, or open it, where it was made"
        )
    outcome = Outcome(state, carry_from=commit.carry_from, server=commit.server)
    carried = {p: updates[p].carry for p, source in commit.carry_from.items() if source == round}
    fetched = {item.version for item in commit.server.in_flight.values()} if commit.server else ()
    versions = {v: state for v, state in {**before.versions, round: state}.items() if v in fetched}
    contents = Contents(state, updates, after.matches)
    reached = Reached(outcome, {**before.carries, **carried}, versions, contents)
    remembered = [(chain, replace(earlier, contents=None)) for chain, earlier in REMEMBERED]
    REMEMBERED.clear()
    REMEMBERED.extend([*remembered, (store.log.chain(round), reached)])
    return reached


def _updates(work: Work, store: RoundStore, before: Reached, commit: Commit) -> dict[int, Update]:
    """Return the updates of a round by partition: those that are stored, and the others mapped again."""
    again, updates = mapped_again(store, commit), dict.fromkeys(commit.updates, NOTHING)
    read = [p for p, record in commit.updates.items() if not record.raised and p not in again]
    updates |= {partition: store.tensors.read_update(commit, partition) for partition in read}
    job = Job(work, Attempt(str(store.place), "", 0, commit.round))
    examples = {p: Partition(_loaded(work.partitions, work.split(commit.round), p)) for p in again}

    def carried(source: int | None, partition: int) -> Slots:
        if source is None:
            return {}
        return before.carries.get(partition) or store.tensors.read_carry(source, partition)

    fetched = partial(_version, work, store, before)
    with generators_kept():
        for inputs in recorded_inputs(job, before.outcome, commit, again, carried, fetched):
            updates |= {mapped.partition: mapped.update.received() for mapped in inputs.mapped(job, examples)}
    return updates


def mapped_again(store: RoundStore, commit: Commit) -> list[int]:
    """Return the partitions of a round that are mapped again: their update is sound and not stored."""
    pruned, round = store.tensors.pruned(), commit.round
    stored = {p for p in commit.updates if commit.has_update(p) and pruned.has_update(round, p)}
    return [p for p, record in commit.updates.items() if not record.raised and p not in stored]


def _version(work: Work, store: RoundStore, before: Reached, version: int) -> State:
    """Return the state after a round, from which an update of a schedule began."""
    if version == before.outcome.state.round:
        return before.outcome.state
    return before.versions.get(version) or outcome_of(work, store, version).state


_loaded = functools.lru_cache(maxsize=1024)(Partitions.load)
"""Return a partition's training examples under a split, cached while many rounds are computed again."""


def reduce_again(
    work: Work,
    before: Outcome,
    commit: Commit,
    updates: Mapping[int, Update],
    without: frozenset[int] = frozenset(),
) -> Outcome:
    """Reduce and apply the updates of a recorded round again, by partition, `without` those of some partitions.

    `before` is the outcome of the round before. Updates that were refused stay refused.
    """
    records = {
        p: replace(record, refused=record.refused or (LEFT_OUT if p in without else None), match=None)
        for p, record in commit.updates.items()
    }
    accepted = {p: None if record.refused else updates[p] for p, record in records.items()}
    nodes = fold_block(work, commit.round, [(0, work.partitions.split.partitions)], accepted)
    return reduce_recorded(work, before, commit, [BlockResult(nodes, records, work.code)])


def reduce_recorded(work: Work, before: Outcome, commit: Commit, blocks: Sequence[BlockResult]) -> Outcome:
    """Return the outcome of a recorded round again, from the round before and the results of all blocks."""
    served: Outcome | None = work.schedule.reduce(work, before, commit, blocks) if work.schedule else None
    return served or reduce_apply(work, before, blocks)
