"""Write and read whole chunks of arrays in the format of zarr's `bytes` and `crc32c` codecs.

Anybody can read the chunks with zarr. They are not written with it for three reasons. It is slower: 40 bytes take
0.7 to 0.9 ms instead of 0.2 ms, and 2 MB take 7 ms instead of 1 to 6 ms (zarr 3.1.6, with its own stores and with
obstore's). It cannot sync a chunk to survive a power loss. And it silently accepts values of another shape and
rows past the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import google_crc32c
import numpy as np

from roundweave.storage.errors import ShapeMismatch, StoreDamaged
from roundweave.storage.hierarchy.schema import ArraySpec
from roundweave.storage.places.base import Place
from roundweave.storage.values.tensors import little_bytes

CHECKSUM = 4
"""The bytes of the crc32c checksum at the end of a chunk."""


CHUNK = re.compile(r"(.+)/c/([0-9]{1,18})((?:/[0-9]{1,18})*)")
"""Matches the key of a chunk: the path of its array, its index on the first axis, and those on further axes."""


def write_chunk(place: Place, spec: ArraySpec, index: tuple[int, ...], array: np.ndarray) -> None:
    """Write one whole chunk.

    `array` has the shape `spec.chunks`, or that without leading axes of length 1. Raises `ShapeMismatch` for
    another shape or dtype, and for an index outside of the array.
    """
    place.write(chunk_key(spec, index), *encoded_chunk(spec, array))


def encoded_chunk(spec: ArraySpec, array: np.ndarray) -> tuple[memoryview, bytes]:
    """The stored bytes of a chunk, and their checksum; `array` and errors are as in `write_chunk`."""
    shape = tuple(array.shape)
    if (
        shape != spec.chunks[-len(shape) :] * bool(shape)
        or array.size != _size(spec)
        or array.dtype != spec.stored
    ):
        raise ShapeMismatch(f"{spec.path}: a chunk is {spec.chunks} {spec.stored}, not {shape} {array.dtype}")
    data = little_bytes(array)
    return data.data, checksum_of(data)


def checksum_of(data: np.ndarray) -> bytes:
    """The crc32c checksum of bytes, (byte,), as it is stored after them."""
    checksum: int = google_crc32c.value(data)
    return checksum.to_bytes(CHECKSUM, "little")


def stream_chunk(place: Place, spec: ArraySpec, index: tuple[int, ...], parts: Iterable[np.ndarray]) -> None:
    """Write one whole chunk from consecutive parts, (element,) or any shape, without holding it all in memory.

    Raises `ShapeMismatch` where the parts do not fill the chunk exactly; then nothing is written.
    """
    place.stream(chunk_key(spec, index), _streamed(spec, parts))


def _streamed(spec: ArraySpec, parts: Iterable[np.ndarray]) -> Iterator[memoryview | bytes]:
    """The bytes of each part, followed by the checksum of all."""
    checksum = size = 0
    for part in parts:
        data = little_bytes(part)
        checksum = google_crc32c.extend(checksum, data)
        size += len(data)
        yield data.data
    if size != chunk_bytes(spec) - CHECKSUM:
        raise ShapeMismatch(f"{spec.path}: a chunk has {chunk_bytes(spec) - CHECKSUM} bytes, not {size}")
    yield checksum.to_bytes(CHECKSUM, "little")


def read_chunk(place: Place, spec: ArraySpec, index: tuple[int, ...]) -> np.ndarray | None:
    """One whole chunk, of shape `spec.chunks`; None where it does not exist.

    Raises `StoreDamaged` where its bytes do not have the right length and checksum.
    """
    key = chunk_key(spec, index)
    content = place.read(key, most=chunk_bytes(spec))
    return None if content is None else decoded_chunk(spec, content, f"{place}/{key}")


def decoded_chunk(spec: ArraySpec, content: memoryview, where: str) -> np.ndarray:
    """A chunk from its stored bytes, of shape `spec.chunks`; raises `StoreDamaged` as `checked_chunk` does."""
    stored = checked_chunk(content, chunk_bytes(spec), where).view(np.dtype(spec.stored).newbyteorder("<"))
    return stored.astype(spec.stored, copy=False).reshape(spec.chunks)


def read_parts(place: Place, spec: ArraySpec, index: tuple[int, ...], elements: int) -> Iterator[np.ndarray]:
    """The elements of an existing chunk in parts of `elements`, (element,) each, without holding it in memory.

    Raises `StoreDamaged` after the last part where the checksum is wrong, so use no part before the end is
    reached.
    """
    key, dtype = chunk_key(spec, index), np.dtype(spec.stored).newbyteorder("<")
    end, step, checksum = chunk_bytes(spec) - CHECKSUM, elements * dtype.itemsize, 0
    for first in range(0, end, step):
        part = np.frombuffer(place.read_part(key, first, min(step, end - first)) or b"", np.uint8)
        checksum = google_crc32c.extend(checksum, part)
        if len(part) == min(step, end - first):
            yield part.view(dtype).astype(spec.stored, copy=False)
    stored = place.read_part(key, end, CHECKSUM + 1)
    if stored is None or bytes(stored) != checksum.to_bytes(CHECKSUM, "little"):
        raise damaged(f"{place}/{key}")


def missing_chunk(place: Place, spec: ArraySpec, index: tuple[int, ...], whose: str) -> StoreDamaged:
    """The error for a missing chunk that should be there according to a record; `whose` says what lacks it."""
    missing = "is missing" if spec.shard == 1 else "is missing or lacks it"
    return StoreDamaged(f"{place}: {whose}, {chunk_key(spec, index)} {missing}; restore the file from a copy")


def checked_chunk(content: memoryview, size: int, where: str) -> np.ndarray:
    """The bytes of a chunk of `size` bytes without its checksum, (byte,).

    Raises `StoreDamaged`, which names `where`, for another length or a wrong checksum.
    """
    data, checksum = np.asarray(content)[:-CHECKSUM], content[-CHECKSUM:]
    if len(content) != size or google_crc32c.value(data) != int.from_bytes(checksum, "little"):
        raise damaged(where)
    return data


def damaged(where: str) -> StoreDamaged:
    """The error for a file, named by `where`, whose bytes are not those that were written."""
    return StoreDamaged(f"{where}: the stored bytes are not those that were written; restore the file from a copy")


def chunk_bytes(spec: ArraySpec) -> int:
    """The stored bytes of a chunk, with its checksum."""
    return _size(spec) * np.dtype(spec.stored).itemsize + CHECKSUM


def empty_chunk(spec: ArraySpec) -> np.ndarray:
    """A chunk filled with the fill value, of shape `spec.chunks`."""
    return np.full(spec.chunks, np.nan if spec.fill == "NaN" else spec.fill, spec.stored)


def _size(spec: ArraySpec) -> int:
    return int(np.prod(spec.chunks, dtype=np.int64))


def chunk_key(spec: ArraySpec, index: tuple[int, ...]) -> str:
    """The key of the file that a chunk is in. Zeros at the end of the chunk's index may be left out.

    Raises `ShapeMismatch` for an index outside of the array.
    """
    if any(not 0 <= i * n < max(size, 1) for i, n, size in zip(index, spec.chunks, spec.shape, strict=False)):
        raise ShapeMismatch(f"{spec.path}: chunk {index} lies outside {spec.shape}")
    numbers = (*index, *(0,) * (len(spec.chunks) - len(index)))
    if spec.shard > 1:
        numbers = (numbers[0], numbers[1] // spec.shard, *numbers[2:])
    return "/".join((spec.path, "c", *map(str, numbers)))
