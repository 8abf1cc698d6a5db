"""Packing: chunks gathered in shards, since a run of many rounds and partitions is as many files."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from storage.hierarchy.schema import ArraySpec
from storage.hierarchy.shards import pack_array, plain_chunks, sharded
from storage.rounds.lease import hold_lease, read_lease
from storage.rounds.packed import is_packed, mark_packed, unpack
from storage.rounds.store import RoundStore

Step = Callable[[int, int], None]
"""Is told how much is done, and of how much."""


@contextmanager
def held(store: RoundStore) -> Iterator[None]:
    """Hold a run at rest, so that nobody goes on with it; raises `RunBusy`."""
    former = read_lease(store.place)
    rounds, failure = (former.rounds, former.failure) if former else (0, None)
    with hold_lease(store.place, secrets.token_hex(4), rounds, failure):
        store.place.sweep()
        yield


def pack_run(store: RoundStore, step: Step = lambda done, total: None) -> bool:
    """Pack a run at rest; False, and nothing written, where all of it is packed.

    Raises `RunBusy` while it is written, `StoreDamaged` for a chunk with flipped bits.
    """
    if is_packed(store.log) and not any(list(plain_chunks(store.place, spec)) for spec in _packable(store)):
        return False
    with held(store):
        pack(store, step)
    return True


def _packable(store: RoundStore) -> list[ArraySpec]:
    """The arrays whose chunks are gathered in shards."""
    return [spec for spec in store.tensors.arrays.values() if sharded(spec)]


def pack(store: RoundStore, step: Step = lambda done, total: None) -> None:
    """Gather the chunks of each array in shards, and let go of those that were pruned or are of no round."""
    pruned, newest = store.tensors.pruned(), store.log.newest()

    def stays(spec: ArraySpec, index: tuple[int, ...]) -> bool:
        return index[0] <= newest and pruned.has_chunk(spec, index)

    mark_packed(store.log)
    arrays = _packable(store)
    for done, spec in enumerate(arrays):
        step(done, len(arrays))
        pack_array(store.place, spec, partial(stays, spec))
    step(len(arrays), len(arrays))


def unpack_run(store: RoundStore) -> bool:
    """Give each chunk of a run at rest a file of its own again; raises `RunBusy` while it is written.

    False, and nothing written, where it is not packed.
    """
    if not is_packed(store.log):
        return False
    with held(store):
        unpack(store.tensors)
    return True
