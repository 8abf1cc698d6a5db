"""A file that promises more than it holds, or was packed to hold more than it has, takes no memory."""

from __future__ import annotations

import copy
import functools
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.storage.runs.test_opening import refused


class Filling:
    """Pickles as so many bytes of zeros."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return bytearray, (1 << 28,)


def packed(path: Path) -> None:
    torch.save({"a": torch.zeros(1 << 22)}, path.with_name("plain"))
    plain = zipfile.ZipFile(path.with_name("plain"))
    with plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))


def overlapping(path: Path) -> None:
    """Many names for the same bytes."""
    torch.save({"a": torch.zeros(1 << 16)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        (large,) = (member for member in archive.infolist() if member.file_size == 1 << 18)
        archive.filelist += [copy.copy(large) for _ in range(100)]
        archive.writestr("more", b"")


def filling(path: Path, zipped: bool = True) -> None:
    torch.save({"a": torch.ones(2), "b": Filling()}, path, _use_new_zipfile_serialization=zipped)


def safe(header: bytes, length: int | None = None) -> Callable[[Path], object]:
    """A safetensors file of this header, which says that it has another length where one is given."""
    size = (length or len(header)).to_bytes(8, "little")
    return lambda path: path.write_bytes(size + header)


HEADER = b'{"a":{"dtype":"F32","shape":%s,"data_offsets":[0,%d]}}'
GREEDY: dict[str, tuple[str, Callable[[Path], object]]] = {
    "packed": (".pt", packed),
    "overlapping": (".pt", overlapping),
    "filling": (".pt", filling),
    "filling as of old": (".pt", functools.partial(filling, zipped=False)),
    "a long header": (".safetensors", safe(b"{}", 1 << 62)),
    "a deep header": (".safetensors", safe(b'{"a":' * 100_000)),
    "a shape that wraps": (".safetensors", safe(HEADER % (b"[4294967296,4294967296]", 0))),
    "offsets past the end": (".safetensors", safe(HEADER % (b"[1073741824]", 4294967296))),
}


@pytest.mark.parametrize("case", GREEDY)
def test_a_file_that_promises_more_than_it_holds_takes_no_memory(tmp_path, case) -> None:
    suffix, make = GREEDY[case]
    path = tmp_path / f"a{suffix}"
    make(path)
    length = path.stat().st_size
    tracemalloc.start()
    refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * length + 1e6
