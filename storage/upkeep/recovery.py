"""Prepare a run to go on: find the newest whole round, and clear away what a killed writer left behind."""

from __future__ import annotations

import math
from collections.abc import Iterable
from math import prod

from roundweave.storage.errors import RoundMissing, StoreDamaged, unless_damaged
from roundweave.storage.hierarchy.zarr_format import array_of, is_cut
from roundweave.storage.parsing import numbered
from roundweave.storage.rounds.pruned import Pruned, base_of, forget_pruned, read_pruned
from roundweave.storage.rounds.store import RoundStore

AT_ONCE = 1 << 22
"""How many elements of a tensor are in memory at once while a state is checked; or one row, if it has more."""


def recover(store: RoundStore) -> tuple[int, list[int]]:
    """Make a store ready to go on; returns the newest whole round, and the rounds whose records were quarantined.

    Quarantined are the records of later rounds and damaged ones. What a killed writer or a power loss left
    half-written is deleted, and documents and numbers are written again from the schema and the records. Only the
    holder of the lease may call this. Raises `StoreDamaged` if no round is whole.
    """
    store.place.sweep()
    cut = cut_short(store)
    last = newest_sound(store, cut.values())
    for key in cut:
        if not key.startswith("commits/"):  # records are quarantined
            store.place.delete(key)
    forget_pruned(store.log, last)
    unfit = store.log.unfit(last)
    commits = {round: store.log.read(round) for round in store.log.rounds() if round not in unfit}
    store.log.torn.update(store.log.misstated(commits, not store.is_old))
    store.tensors.describe()
    store.splits.drop(commits.values())
    # Records are moved last: numbers without a record would look as if somebody had deleted the record.
    store.show(list(commits))
    store.log.quarantine(unfit)
    store.place.flush()
    return last, unfit


def cut_short(store: RoundStore) -> dict[str, int]:
    """Return the keys of chunks and records that a power loss left too short or empty, with the round of each."""
    # Where it is unknown what was pruned, everything that it listed counts as lost.
    known, cut = unless_damaged(read_pruned, store.log) or Pruned(), dict[str, int]()
    for key, size in store.place.sizes().items():
        if found := array_of(store.tensors.arrays, key):
            spec, numbers = found
            if is_cut(spec, size) and any(known.has_chunk(spec, index) for index in spec.held(numbers)):
                cut[key] = numbers[0]
        elif not size and (records := numbered([key.removeprefix("commits/")])):
            cut[key] = records[0]
    return {key: round for key, round in cut.items() if round > 0}


def newest_sound(store: RoundStore, cut: Iterable[int] = ()) -> int:
    """Return the newest round from which a run can go on.

    It comes before all rounds in `cut`, which have contents that were cut short and are trained again, to the same
    bits. Raises `StoreDamaged` if there is no such round.
    """
    end = min(cut, default=math.inf)
    for round in reversed([round for round in store.log.rounds() if round < end]):
        try:
            _check(store, round)
        except (StoreDamaged, RoundMissing):
            continue
        return round
    raise StoreDamaged(f"{store.place}: no round is whole, not even the initial state; start a new run")


def _check(store: RoundStore, round: int) -> None:
    """Raise where a run cannot go on from a round, because something that is needed is damaged or missing.

    Needed are its state and those of work in flight, or what they are computed again from: the last stored states,
    and the updates since that were stored; and every carry.
    """
    commit, known = store.log.read(round), unless_damaged(read_pruned, store.log) or Pruned()
    bases = {row: base_of(store.log, known, row) for row in commit.begins}
    for base in set(bases.values()):
        _check_state(store, base)
    for later in {later for row, base in bases.items() for later in range(base + 1, row + 1)}:
        between = store.log.read(later)
        for partition in filter(between.has_update, between.accepted):
            store.tensors.read_update(between, partition)
    for partition, source in commit.carry_from.items():
        store.tensors.read_update(source, partition)


def _check_state(store: RoundStore, round: int) -> None:
    """Raise as `StoredTensors.read_state` does, with only some rows of a large tensor in memory at a time."""
    commit = store.tensors.commit(round)
    for path, stored in store.schema.state(1).items():
        shape = stored.shape if path.startswith("frozen/") else stored.shape[1:]
        if (size := prod(shape)) <= AT_ONCE:
            store.tensors.read_tensor(commit, path)
        else:
            for _ in store.tensors.read_rows(commit, path, max(1, shape[0] * AT_ONCE // size)):
                pass
