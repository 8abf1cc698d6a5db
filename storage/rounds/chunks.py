"""Whole chunks on a local disk: the bytes that zarr's `bytes` and `crc32c` codecs make, written in one rename.

zarr itself creates the hierarchy and reads it for everybody else. Writing through it takes twice the time, cannot
be made to survive a power loss, and lets a value of another shape or a row past the end pass in silence.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import google_crc32c
import numpy as np

from storage.errors import ShapeMismatch, StoreDamaged
from storage.rounds.commits import PARTIAL, sync_folder
from storage.rounds.schema import ArraySpec

CHECKSUM = 4
"""Bytes of the checksum that ends a chunk."""


def write_chunk(
    root: Path, spec: ArraySpec, index: tuple[int, ...], array: np.ndarray, fsync: bool = False
) -> None:
    """Write one whole chunk, at once; raises `ShapeMismatch` for an array that is not exactly it."""
    shape = tuple(array.shape)
    if (
        shape != spec.chunks[-len(shape) :] * bool(shape)
        or array.size != _size(spec)
        or array.dtype != spec.stored
    ):
        raise ShapeMismatch(f"{spec.path}: a chunk is {spec.chunks} {spec.stored}, not {shape} {array.dtype}")
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    path = _path(root, spec, index)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        file = partial.open("xb", buffering=0)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("xb", buffering=0)
    with file:
        for piece in (data.data, google_crc32c.value(data).to_bytes(CHECKSUM, "little")):
            left = memoryview(piece)
            while left:
                left = left[file.write(left) :]
        if fsync:
            os.fsync(file.fileno())
    partial.replace(path)
    if fsync:
        sync_folder(path.parent)


def read_chunk(root: Path, spec: ArraySpec, index: tuple[int, ...]) -> np.ndarray | None:
    """One whole chunk of shape `spec.chunks`, None where there is none; raises `StoreDamaged` for flipped bits."""
    path = _path(root, spec, index)
    try:
        content = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        return None
    data, checksum = content[:-CHECKSUM], content[-CHECKSUM:]
    dtype = np.dtype(spec.stored).newbyteorder("<")
    if len(data) != _size(spec) * dtype.itemsize or google_crc32c.value(data) != int.from_bytes(
        checksum, "little"
    ):
        raise StoreDamaged(f"{path}: the stored bytes are not those that were written")
    return data.view(dtype).astype(spec.stored, copy=False).reshape(spec.chunks)


def _size(spec: ArraySpec) -> int:
    return int(np.prod(spec.chunks, dtype=np.int64))


def _path(root: Path, spec: ArraySpec, index: tuple[int, ...]) -> Path:
    if any(not 0 <= i * n < max(size, 1) for i, n, size in zip(index, spec.chunks, spec.shape, strict=False)):
        raise ShapeMismatch(f"{spec.path}: chunk {index} lies outside {spec.shape}")
    key = (*index, *(0,) * (len(spec.chunks) - len(index)))
    return root.joinpath(spec.path, "c", *map(str, key))
