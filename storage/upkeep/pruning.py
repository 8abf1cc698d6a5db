"""Prune tensors of rounds, or remove a whole run.

What is pruned is recorded first, then deleted. If the deletion is interrupted, the next pruning deletes the rest.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from roundweave.storage.errors import StoreDamaged
from roundweave.storage.hierarchy.schema import ArraySpec
from roundweave.storage.hierarchy.zarr_format import NAME, array_of, chunk_bytes, index_bytes, keep_chunks
from roundweave.storage.places.base import Place
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.lease import fenced, hold_lease, read_lease
from roundweave.storage.rounds.pruned import Pruned, absent, base_of, there, write_pruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import All, Keep
from roundweave.storage.upkeep.recovery import cut_short, newest_sound

REMOVING = "removing"
"""The file that a run has while it is removed."""


@dataclass(frozen=True)
class LetGo:
    """What a pruning deletes: the rounds concerned, whole or in part, and how many bytes."""

    rounds: tuple[int, ...]
    bytes: int


def prune(store: RoundStore, keep: Keep, newest: Commit, held: frozenset[int] = frozenset()) -> None:
    """Delete the tensors that a policy does not keep; `newest` is the round from which the run goes on.

    The states of the rounds `held`, which have aliases, stay.
    Only the holder of the lease may call this, while no work is in progress that began from an earlier round.
    """
    if keep == All():
        return
    pruned = _prunes(store, keep, newest, absent(store.log, newest.round), held)
    if pruned != store.tensors.pruned():  # what was never stored is recorded, too, so that it is soon known
        write_pruned(store.log, pruned, newest.round)
    for spec in store.tensors.arrays.values():
        if spec.over_rounds:
            _delete(store, spec, pruned)


def prune_run(store: RoundStore, keep: Keep, dry: bool = False, held: frozenset[int] = frozenset()) -> LetGo:
    """Prune a run that nobody writes; returns what was deleted, or with `dry` what would be.

    Raises `RunBusy` while the run is written, and `StoreDamaged` if its newest round is not whole.
    """
    if dry:
        return _goes(store, keep, store.log.read(store.log.last()), held)
    former = read_lease(store.place)
    rounds, failure = (former.rounds, former.failure) if former else (0, None)
    with hold_lease(store.place, secrets.token_hex(4), rounds, failure) as lease:  # so that nobody goes on with it
        store = RoundStore(fenced(store.place, lease.epoch))
        store.place.sweep()
        last = store.log.last()
        # It is verified, as after pruning it may be the only round to go on from.
        if newest_sound(store, cut_short(store).values()) != last:
            raise StoreDamaged(f"round {last} of {store.place} is damaged; `roundweave resume` first, then prune")
        newest = store.log.read(last)
        store.place.flush()
        goes = _goes(store, keep, newest, held)
        prune(store, keep, newest, held)
    return goes


def _prunes(store: RoundStore, keep: Keep, newest: Commit, former: Pruned, held: frozenset[int]) -> Pruned:
    base, stored = base_of(store.log, former, min(newest.begins)), partial(there, store.log, former)
    pruned = keep.prunes(newest, former, base, stored, _single(store, keep, newest, former))
    return replace(pruned, states=pruned.states - (held - former.states))


def _single(store: RoundStore, keep: Keep, newest: Commit, former: Pruned) -> Iterator[tuple[int, int]]:
    """Yield the updates, as (round, partition), that are needed to map rounds again from a kept state."""
    if not keep.maps_again:
        return
    for round in sorted({round for round, _ in former.carried}):
        yield from ((round, partition) for partition in _read(store, round).late)
    if newest.carry_from:
        for round in filter(lambda round: keep.state(round, round), store.log.rounds()):
            if round <= newest.round:
                yield from ((source, partition) for partition, source in _read(store, round).carry_from.items())


@functools.lru_cache(maxsize=4096)
def _read(store: RoundStore, round: int) -> Commit:
    """Return the record of a round, which never changes."""
    return store.log.read(round)


def _goes(store: RoundStore, keep: Keep, newest: Commit, held: frozenset[int]) -> LetGo:
    pruned = _prunes(store, keep, newest, absent(store.log, newest.round), held)
    going = list(_going(store, pruned))
    return LetGo(tuple(sorted({round for round, _ in going})), sum(size for _, size in going))


def _going(store: RoundStore, pruned: Pruned) -> Iterator[tuple[int, int]]:
    """Yield the round of each file that is pruned, whole or in part, and the number of bytes that this frees."""
    for key, size in store.place.sizes().items():
        if found := array_of(store.tensors.arrays, key):
            spec, numbers = found
            held = spec.held(numbers)
            staying = sum(pruned.has_chunk(spec, index) for index in held)
            less = size - (index_bytes(spec) + staying * chunk_bytes(spec) if staying else 0)
            if staying < len(held) and less > 0:
                yield numbers[0], less


def _delete(store: RoundStore, spec: ArraySpec, pruned: Pruned) -> None:
    """Delete the pruned chunks of an array; where no chunk of a round stays, all of them in one call."""
    top = f"{spec.path}/c"
    carried = {round for round, _ in pruned.carried}
    for name in store.place.names(top):
        if not name.isdecimal() or pruned.has_chunk(spec, (int(name), -1)):
            continue
        if not spec.by_partition or int(name) not in carried:
            store.place.delete(f"{top}/{name}")
            continue
        for shard in store.place.names(f"{top}/{name}"):
            held = spec.held((int(name), int(shard))) if shard.isdecimal() else []
            staying = [index[1] for index in held if pruned.has_chunk(spec, index)]
            if not staying:
                store.place.delete(f"{top}/{name}/{shard}")
            elif spec.shard > 1:
                keep_chunks(store.place, spec, int(name), staying)


def remove_run(place: Place) -> None:
    """Delete the run at a place. Raises `RunBusy` while it is written.

    It is claimed for that, so nobody begins to write it meanwhile. The root's ``zarr.json`` is deleted first, so
    that the rest of an interrupted removal does not count as a run; `REMOVING` stays to the end, and tells of it.
    """
    if not is_half_removed(place):
        with hold_lease(place, secrets.token_hex(4)):
            place.create(REMOVING, b"")
            place.delete(NAME)
    for name in place.names():
        if name != REMOVING:
            place.delete(name)
    place.delete("")


def is_half_removed(place: Place) -> bool:
    """Tell whether a place has what an interrupted removal has left of a run."""
    return place.has(REMOVING) and not place.has(NAME)
