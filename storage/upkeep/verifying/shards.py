"""Verifying shards: beside what is read of them by round, their indices, sizes, and chunks that nobody reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from storage.errors import StoreDamaged
from storage.hierarchy.chunks import chunk_key, read_chunk
from storage.hierarchy.schema import ArraySpec
from storage.hierarchy.shards import Index, read_packed, shard_bytes
from storage.upkeep.verifying.contents import Sealed
from storage.upkeep.verifying.stored import Finding, Looked, Shard, Stored, refused
from storage.upkeep.verifying.strangers import why_left


def shards(stored: Stored, every: Iterable[Sealed]) -> Looked:
    """All shards; those chunks of theirs that are read by round are verified there."""
    told = {(array.path, sealed.index) for sealed in every for array in sealed.arrays}
    findings, notes = list[Finding](), list[Finding]()
    for shard in stored.shards.values():
        findings += _unsound(stored, shard)
        for index in shard.chunks:
            if (shard.spec.path, index) not in told:
                left = why_left(stored, shard.spec, index) if index[0] < shard.spec.shape[0] else None
                what = left or "it does not belong to the run"
                (notes if left else findings).append(Finding(shard.key, f"of chunk {index}: {what}"))
    return Looked(frozenset(stored.shards), tuple(findings), tuple(notes))


def _unsound(stored: Stored, shard: Shard) -> Iterator[Finding]:
    """What is wrong with a shard, beside chunks that are verified when they are read."""
    if shard.unread:
        yield shard.unread
    elif stored.sizes[shard.key] != shard_bytes(shard.spec, len(shard.chunks)):
        yield Finding(shard.key, "it has more or fewer bytes than its chunks")
    for index in shard.chunks:
        if chunk_key(shard.spec, index) in stored.sizes or not stored.keeps(shard.spec, index):
            check = partial(_check_copy, stored, shard.spec, index)
            if finding := refused(stored.place, shard.key, check):
                yield finding


def _check_copy(stored: Stored, spec: ArraySpec, index: Index) -> None:
    """Raise `StoreDamaged` where a chunk in a shard is damaged, or not the one with a file of its own."""
    packed, plain = read_packed(stored.place, spec, index), read_chunk(stored.place, spec, index)
    if packed is not None and plain is not None and packed.tobytes() != plain.tobytes():
        raise StoreDamaged(f"chunk {index} is not {chunk_key(spec, index)}, which it was packed from")
