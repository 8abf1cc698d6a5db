"""Going on with a run: which round is whole, and what a killed writer left behind."""

from __future__ import annotations

import math
from collections.abc import Iterable

from storage.errors import RoundMissing, StoreDamaged
from storage.hierarchy.chunks import CHUNK, chunk_bytes
from storage.parsing import numbered
from storage.rounds.commits import Commit
from storage.rounds.pruned import Pruned, base_of, forget_pruned
from storage.rounds.store import RoundStore


def recover(store: RoundStore) -> tuple[int, list[int]]:
    """The newest round that is whole, and those that were quarantined: later ones, and those of damaged records.

    Only the holder of the lease may call this: it deletes what a killed writer or a power loss left half-written,
    and makes anew what the schema and the records decide, for as many rounds as the store has room for. Raises
    `StoreDamaged` where no round is whole.
    """
    store.place.sweep()
    cut = cut_short(store)
    last = newest_whole(store, cut.values())
    for key in cut:
        if not key.startswith("commits/"):  # records are quarantined
            store.place.delete(key)
    forget_pruned(store.log, last)
    unfit = store.log.unfit(last)
    kept = [store.log.read(round) for round in store.log.rounds() if round not in unfit]
    store.tensors.describe()
    store.splits.drop(kept)
    # Records go last: numbers of rounds without one are those of a record that somebody took away.
    store.numbers.rebuild(kept)
    aside = store.log.quarantine(last)
    store.place.flush()
    return last, aside


def cut_short(store: RoundStore) -> dict[str, int]:
    """The contents of rounds that a power loss left with fewer bytes than were written, and the round of each."""
    known, cut = _known(store), dict[str, int]()
    for key, size in store.place.sizes().items():
        parts = CHUNK.fullmatch(key)
        spec = store.tensors.arrays.get(parts[1]) if parts else None
        if parts and spec and spec.over_rounds and size < chunk_bytes(spec):
            index = (int(parts[2]), *map(int, parts[3].split("/")[1:]))
            if known.has_chunk(spec, index):
                cut[key] = index[0]
        elif not size and (records := numbered([key.removeprefix("commits/")])):
            cut[key] = records[0]
    return {key: round for key, round in cut.items() if round > 0}


def newest_whole(store: RoundStore, cut: Iterable[int] = ()) -> int:
    """The newest round that can be gone on from, and that comes before those of which contents were cut short.

    Those are done again, to the same bits. Raises `StoreDamaged` where there is none.
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
    """Raise where a round cannot be gone on from: a state, its own or in hand, or what makes it, or a carry."""
    commit, known = store.log.read(round), _known(store)
    bases = {row: base_of(store.log, known, row) for row in commit.begins}
    for base in set(bases.values()):
        store.tensors.read_state(base)
    for later in {later for row, base in bases.items() for later in range(base + 1, row + 1)}:
        _check_updates(store, store.log.read(later))
    for partition, source in commit.carry_from.items():
        store.tensors.read_update(source, partition)


def _check_updates(store: RoundStore, commit: Commit) -> None:
    for partition in commit.accepted:
        store.tensors.read_update(commit, partition)


def _known(store: RoundStore) -> Pruned:
    """What was pruned; of a damaged record nobody knows, and what it told of is lost."""
    try:
        return store.tensors.pruned()
    except StoreDamaged:
        return Pruned()
