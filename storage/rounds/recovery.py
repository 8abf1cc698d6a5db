"""Going on with a run: which round is whole, and what a killed writer left behind."""

from __future__ import annotations

from storage.errors import StoreDamaged
from storage.rounds.store import RoundStore


def recover(store: RoundStore) -> tuple[int, list[int]]:
    """The newest round that is whole, and the later ones that were set aside because they are not.

    Only the holder of the lease may call this: it deletes what a killed writer left half-written, and makes the
    history anew from the commits. Raises `StoreDamaged` where no round is whole.
    """
    store.place.sweep()
    last = _newest_whole(store)
    later = store.log.set_aside(last)
    store.history.rebuild(store.log.read(round) for round in store.log.rounds())
    return last, later


def _newest_whole(store: RoundStore) -> int:
    for round in reversed(store.log.rounds()):
        try:
            _check(store, round)
        except StoreDamaged:
            continue
        return round
    raise StoreDamaged(f"{store.place}: no round is whole, not even the initial state; start a new run")


def _check(store: RoundStore, round: int) -> None:
    """Raise `StoreDamaged` where a round cannot be gone on from: its state and what the partitions carry."""
    commit = store.log.read(round)
    store.read_state(commit)
    for partition, source in commit.carry_from.items():
        store.read_update(source, partition)
