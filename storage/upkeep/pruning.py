"""Letting go of the tensors of rounds: recorded first, then deleted; what is left of it goes with the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from storage.errors import StoreDamaged
from storage.hierarchy.chunks import chunk_bytes
from storage.hierarchy.schema import ArraySpec
from storage.hierarchy.shards import packed_chunks, plain_chunks
from storage.rounds.commits import Commit
from storage.rounds.packed import is_packed
from storage.rounds.pruned import Pruned, base_of, there, write_pruned
from storage.rounds.recovery import cut_short, newest_whole
from storage.rounds.store import RoundStore
from storage.upkeep.keeping import Asked, Keep, never
from storage.upkeep.packing import held, pack


@dataclass(frozen=True)
class LetGo:
    """What a pruning lets go of: these rounds, whole or in part, and so many bytes."""

    rounds: tuple[int, ...]
    bytes: int


def prune(store: RoundStore, keep: Keep, newest: Commit, stays: Asked = never) -> None:
    """Let go of the tensors that are not to be kept, where the newest round is the one to go on from.

    What `stays` is as in `Keep.prunes`. Only the holder of the lease may call this, while no work is under way
    that begins from an earlier round.
    """
    if keep == Keep():
        return
    former = store.tensors.pruned()
    pruned = _prunes(store, keep, newest, former, stays)
    if pruned != former:
        write_pruned(store.log, pruned, newest.round)
    for spec in store.tensors.arrays.values():
        if spec.over_rounds:
            _delete(store, spec, pruned)
    if is_packed(store.log):
        pack(store)


def prune_run(store: RoundStore, keep: Keep, dry: bool = False) -> LetGo:
    """The same of a run at rest; what it lets go of, or where it is dry would.

    Raises `RunBusy` while the run is written, `StoreDamaged` where its newest round is not whole.
    """
    if dry:
        return _goes(store, keep, store.log.read(store.log.newest()))
    with held(store):
        newest = _newest(store)
        store.place.flush()
        goes = _goes(store, keep, newest)
        prune(store, keep, newest)
    return goes


def _newest(store: RoundStore) -> Commit:
    """The record of the last round, which is verified: it is all that is left to go on from."""
    newest = store.log.newest()
    if newest_whole(store, cut_short(store).values()) != newest:
        raise StoreDamaged(f"round {newest} of {store.place} is damaged; `roundweave resume` first, then prune")
    return store.log.read(newest)


def _prunes(store: RoundStore, keep: Keep, newest: Commit, former: Pruned, stays: Asked = never) -> Pruned:
    base = base_of(store.log, former, newest.needed)
    return keep.prunes(newest, former, base, partial(there, store.log, former), stays)


def _goes(store: RoundStore, keep: Keep, newest: Commit) -> LetGo:
    pruned = _prunes(store, keep, newest, store.tensors.pruned())
    going = list(_going(store, pruned))
    return LetGo(tuple(sorted({round for round, _ in going})), sum(size for _, size in going))


def _going(store: RoundStore, pruned: Pruned) -> Iterator[tuple[int, int]]:
    """The round and the bytes of each chunk that is there and goes."""
    for spec in store.tensors.arrays.values():
        if spec.over_rounds:
            for index in {*plain_chunks(store.place, spec), *packed_chunks(store.place, spec)}:
                if not pruned.has_chunk(spec, index):
                    yield index[0], chunk_bytes(spec)


def _delete(store: RoundStore, spec: ArraySpec, pruned: Pruned) -> None:
    """Delete the chunks of an array that were let go, those of a round at once where none of them stays."""
    top = f"{spec.path}/c"
    carried = {round for round, _ in pruned.carried}
    for name in store.place.names(top):
        if not name.isdecimal() or pruned.has_chunk(spec, (int(name), -1)):
            continue
        if not spec.by_partition or int(name) not in carried:
            store.place.delete(f"{top}/{name}")
            continue
        for partition in store.place.names(f"{top}/{name}"):
            if not (partition.isdecimal() and pruned.has_chunk(spec, (int(name), int(partition)))):
                store.place.delete(f"{top}/{name}/{partition}")
