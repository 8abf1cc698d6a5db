"""Write and read files with the chunks of neighbouring partitions, in the format of zarr's `sharding_indexed`.

A file begins with an index, which has the offset and the size of each partition's chunk, and its checksum. The
chunks follow in the order of their partitions, without gaps, so the index follows from which partitions are there.
Any other index counts as damage. An array with a single partition to a file has plain chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from roundweave.storage.hierarchy.chunks import (
    CHECKSUM,
    CHUNK,
    checked_chunk,
    checksum_of,
    chunk_bytes,
    chunk_key,
    damaged,
    decoded_chunk,
    encoded_chunk,
    read_chunk,
)
from roundweave.storage.hierarchy.schema import ArraySpec
from roundweave.storage.places.base import Place

ABSENT = (1 << 64) - 1
"""What the index has as offset and size of a chunk that is not in the file."""


def write_shard(place: Place, spec: ArraySpec, round: int, arrays: Mapping[int, np.ndarray]) -> None:
    """Write the chunks of a round's partitions, by partition, as all that their file holds.

    Each array is as for `write_chunk`. Raises `ShapeMismatch` as that does, and `ValueError` unless all are in one
    file.
    """
    [key] = {chunk_key(spec, (round, partition)) for partition in arrays}
    partitions = sorted(arrays)
    pieces = [piece for partition in partitions for piece in encoded_chunk(spec, arrays[partition])]
    if spec.shard > 1:
        index = _index(spec, [partition % spec.shard for partition in partitions]).reshape(-1).view(np.uint8)
        pieces = [index.data, checksum_of(index), *pieces]
    place.write(key, *pieces)


def read_stored(place: Place, spec: ArraySpec, index: tuple[int, ...]) -> np.ndarray | None:
    """A chunk, of shape `spec.chunks`, whether others are in its file or not; None where it does not exist.

    Raises `StoreDamaged` where the bytes of the chunk or of the file's index are not those that were written.
    """
    if spec.shard == 1:
        return read_chunk(place, spec, index)
    there = partitions_in(place, spec, index)
    if index[1] not in there:
        return None
    key, size, before = chunk_key(spec, index), chunk_bytes(spec), there.index(index[1])
    # Of the last chunk one byte more is asked for, so that a byte after it is noticed.
    content = place.read_part(key, index_bytes(spec) + before * size, size + (before == len(there) - 1))
    return None if content is None else decoded_chunk(spec, content, f"{place}/{key}")


def partitions_in(place: Place, spec: ArraySpec, index: tuple[int, ...]) -> list[int]:
    """The partitions whose chunks are in the file of a chunk, ascending; none where there is no file.

    If every partition has a file of its own, it is not looked for. Raises `StoreDamaged` for a damaged index.
    """
    if spec.shard == 1:
        return [index[1]]
    key = chunk_key(spec, index)
    content = place.read_part(key, 0, index_bytes(spec))
    if content is None:
        return []
    table = checked_chunk(content, index_bytes(spec), f"{place}/{key}").view("<u8").reshape(-1, 2)
    there = np.flatnonzero(table[:, 0] != ABSENT)
    if not np.array_equal(table, _index(spec, there)):
        raise damaged(f"{place}/{key}")
    return [index[1] // spec.shard * spec.shard + int(number) for number in there]


def keep_chunks(place: Place, spec: ArraySpec, round: int, partitions: Collection[int]) -> None:
    """Write the file that has these partitions of a round anew, without the chunks of all others."""
    there = partitions_in(place, spec, (round, min(partitions)))
    staying = [partition for partition in there if partition in partitions]
    if 0 < len(staying) < len(there):
        chunks = {partition: read_stored(place, spec, (round, partition)) for partition in staying}
        write_shard(place, spec, round, {p: chunk for p, chunk in chunks.items() if chunk is not None})


def index_bytes(spec: ArraySpec) -> int:
    """The bytes of the index at the beginning of a file, with its checksum; 0 where files have no index."""
    return 0 if spec.shard == 1 else 16 * spec.shard + CHECKSUM


def array_of(arrays: Mapping[str, ArraySpec], key: str) -> tuple[ArraySpec, tuple[int, ...]] | None:
    """The array over rounds that a file belongs to, and the numbers in its key; None for any other file."""
    parts = CHUNK.fullmatch(key)
    spec = arrays.get(parts[1]) if parts else None
    if parts is None or spec is None or not spec.over_rounds:
        return None
    return spec, (int(parts[2]), *map(int, parts[3].split("/")[1:]))


def is_cut(spec: ArraySpec, size: int) -> bool:
    """Whether a file of so many bytes was cut short: it must have its index and whole chunks."""
    chunks = size - index_bytes(spec)
    return chunks < chunk_bytes(spec) or (spec.shard > 1 and chunks % chunk_bytes(spec) > 0)


def _index(spec: ArraySpec, there: Sequence[int] | np.ndarray) -> np.ndarray:
    """The offsets and sizes of a shard's chunks, uint64 (partition, 2); `there` are numbers within the shard."""
    table = np.full((spec.shard, 2), ABSENT, "<u8")
    table[there, 0] = index_bytes(spec) + chunk_bytes(spec) * np.arange(len(there))
    table[there, 1] = chunk_bytes(spec)
    return table
