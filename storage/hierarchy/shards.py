"""Chunks of many rounds gathered in shards, as zarr's `sharding_indexed` codec has them.

A shard is a content of its chunks one after the other, bytes and checksums as they were, and at its end an index:
first byte and size of each, and a checksum. Which chunks are in it follows from the schema alone, so that a chunk
is found whatever the documents say. The names of shards are not those of chunks: both may be there, and are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod

import numpy as np

from storage.errors import StoreDamaged
from storage.hierarchy.chunks import CHECKSUM, checked, chunk_bytes, chunk_key, decoded_chunk, with_checksum
from storage.hierarchy.documents import replace_documents
from storage.hierarchy.schema import ArraySpec
from storage.places.base import Place

BYTES = 1 << 26
"""Bytes of a shard, unless a round alone has more."""


CHUNKS = 1024
"""Chunks of a shard, unless a round alone has more: each read of one begins with an index of 16 bytes for each."""


ABSENT = (1 << 64) - 1
"""First byte and size, in an index, of a chunk that is not there."""


Index = tuple[int, ...]


def sharded(spec: ArraySpec) -> ArraySpec | None:
    """An array as it is when it is packed; None for one that is not over rounds, or has no elements."""
    if not spec.over_rounds or not prod(spec.chunks):
        return None
    a_round = _chunks_a_round(spec)
    return replace(spec, shard=max(1, min(CHUNKS // a_round, BYTES // (a_round * chunk_bytes(spec)))))


def read_packed(place: Place, spec: ArraySpec, index: Index) -> np.ndarray | None:
    """One chunk of shape `spec.chunks` out of its shard, None where it is in none; raises `StoreDamaged`."""
    packed = sharded(spec)
    if packed is None:
        return None
    number, at = divmod(_position(spec, index), packed.shard * _chunks_a_round(spec))
    table = _read_index(place, packed, number)
    if table is None or table[at, 0] == ABSENT:
        return None
    key = _key(packed, number)
    content = place.read_part(key, int(table[at, 0]), chunk_bytes(spec))
    return decoded_chunk(spec, content or memoryview(b""), f"{place}/{key}: chunk {index}")


def packed_chunks(place: Place, spec: ArraySpec) -> Iterator[Index]:
    """The chunks of an array that are in shards; raises `StoreDamaged`."""
    packed = sharded(spec)
    for number in _numbers(place, packed) if packed else ():
        yield from shard_chunks(place, spec, number)


def shard_chunks(place: Place, spec: ArraySpec, number: int) -> list[Index]:
    """The chunks of an array that are in one of its shards; raises `StoreDamaged`."""
    packed = sharded(spec)
    table = _read_index(place, packed, number) if packed else None
    if packed is None or table is None:
        return []
    return [_index(packed, number, int(at)) for at in np.flatnonzero(table[:, 0] != ABSENT)]


def shard_key(spec: ArraySpec, index: Index) -> str | None:
    """Where the shard lies that a chunk is in when its array is packed; None for an array that never is."""
    packed = sharded(spec)
    return _key(packed, index[0] // packed.shard) if packed else None


def shard_bytes(spec: ArraySpec, chunks: int) -> int:
    """Bytes of a shard of so many chunks."""
    packed = sharded(spec)
    assert packed is not None
    return chunks * chunk_bytes(spec) + _index_bytes(packed)


def pack_array(place: Place, spec: ArraySpec, stays: Callable[[Index], bool]) -> None:
    """Gather the chunks that stay, and let go of all others.

    The shards are written first, then the array is described by them, then the chunks are deleted: whenever this
    ends, by a power loss as well, each chunk is there, and zarr reads the array. Raises `StoreDamaged` for a chunk
    with flipped bits.
    """
    packed = sharded(spec)
    if packed is None:
        return
    plain = [index for index in plain_chunks(place, spec) if stays(index)]
    for number in sorted({index[0] // packed.shard for index in plain} | {*_numbers(place, packed)}):
        former = _contents(place, packed, number)
        contents = {index: content for index, content in former.items() if stays(index)}
        new = dict(_plain_contents(place, spec, (i for i in plain if i[0] // packed.shard == number)))
        if new or len(contents) < len(former):
            _write_shard(place, packed, number, contents | new)
    replace_documents(place, [packed], fsync=True)
    place.delete(f"{spec.path}/c")


def unpack_array(place: Place, spec: ArraySpec) -> None:
    """Give each chunk that is in a shard a content of its own again, then delete the shards.

    One with a damaged index stays where it is, so that it can be restored.
    """
    packed = sharded(spec)
    if packed is None:
        return
    done: list[int] = []
    for number in _numbers(place, packed):
        with suppress(StoreDamaged):
            for index, content in _contents(place, packed, number).items():
                key = chunk_key(spec, index)
                if not place.create(key, content) and len(place.read(key) or b"") < len(content):
                    place.write(key, content)  # over what a power loss left of an earlier try
            done.append(number)
    replace_documents(place, [spec])
    place.flush()
    for number in done:
        place.delete(_key(packed, number))


def plain_chunks(place: Place, spec: ArraySpec) -> Iterator[Index]:
    """The chunks of an array that are contents of their own."""
    top = f"{spec.path}/c"
    for round in _decimal(place.names(top)):
        if spec.by_partition:
            yield from ((round, partition) for partition in _decimal(place.names(f"{top}/{round}")))
        else:
            yield (round,)


def _decimal(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdecimal())


def _plain_contents(place: Place, spec: ArraySpec, indices: Iterable[Index]) -> Iterator[tuple[Index, memoryview]]:
    """The contents of chunks, verified; of one whose deletion was cut short only its folder may be left."""
    for index in indices:
        key = chunk_key(spec, index)
        content = place.read(key, most=chunk_bytes(spec))
        if content is not None:
            checked(content, chunk_bytes(spec), f"{place}/{key}")
            yield index, content


def _write_shard(place: Place, packed: ArraySpec, number: int, contents: Mapping[Index, memoryview]) -> None:
    """Write a shard of these chunks, or delete it where there are none."""
    if not contents:
        place.delete(_key(packed, number))
        return
    table, first = np.full((packed.shard * _chunks_a_round(packed), 2), ABSENT, "<u8"), 0
    for index in sorted(contents):
        table[_position(packed, index) % len(table)] = first, len(contents[index])
        first += len(contents[index])
    chunks = [contents[index] for index in sorted(contents)]
    place.write(_key(packed, number), *chunks, *with_checksum(table.reshape(-1).view(np.uint8)), durable=True)


def _contents(place: Place, packed: ArraySpec, number: int) -> dict[Index, memoryview]:
    """The contents of the chunks of a shard; none where there is no such shard."""
    table, shard = _read_index(place, packed, number), place.read(_key(packed, number))
    if table is None or shard is None:
        return {}
    there = np.flatnonzero(table[:, 0] != ABSENT)
    return {
        _index(packed, number, int(at)): shard[int(table[at, 0]) : int(table[at, 0]) + chunk_bytes(packed)]
        for at in there
    }


def _read_index(place: Place, packed: ArraySpec, number: int) -> np.ndarray | None:
    """First byte and size of each chunk of a shard, (chunk, 2); raises `StoreDamaged` where these cannot be."""
    size, key = _index_bytes(packed), _key(packed, number)
    content = place.read_part(key, -size, size)
    if content is None:
        return None
    table = checked(content, size, f"{place}/{key}").view("<u8").reshape(-1, 2)
    there = table[table[:, 0] != ABSENT]
    firsts = np.arange(len(there), dtype=np.uint64) * np.uint64(chunk_bytes(packed))
    if (there[:, 0] != firsts).any() or (there[:, 1] != chunk_bytes(packed)).any():
        raise StoreDamaged(f"{place}/{key}: its index is of other chunks; restore the file from a copy")
    return table


def _index_bytes(packed: ArraySpec) -> int:
    return 16 * packed.shard * _chunks_a_round(packed) + CHECKSUM


def _numbers(place: Place, packed: ArraySpec) -> list[int]:
    """The numbers of the shards that are there."""
    return _decimal(name.split(".")[1] for name in place.names(packed.path) if name.startswith("c."))


def _chunks_a_round(spec: ArraySpec) -> int:
    return spec.shape[1] if spec.by_partition else 1


def _position(spec: ArraySpec, index: Index) -> int:
    """Which of all chunks of the array this is, round by round."""
    return index[0] * _chunks_a_round(spec) + (index[1] if spec.by_partition else 0)


def _index(packed: ArraySpec, number: int, position: int) -> Index:
    """The chunk at a position of a shard."""
    round, partition = divmod(position, _chunks_a_round(packed))
    round += number * packed.shard
    return (round, partition) if packed.by_partition else (round,)


def _key(packed: ArraySpec, number: int) -> str:
    return f"{packed.path}/c." + ".".join(map(str, (number, *(0,) * (len(packed.chunks) - 1))))
