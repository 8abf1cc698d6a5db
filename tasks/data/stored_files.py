"""Files of examples that are larger than memory: how they are found and read."""

from __future__ import annotations

import functools
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import DataError, FileMissing
from roundweave.storage.places.base import scheme_of
from roundweave.storage.values.hashing import json_digest, pieces_digest
from roundweave.tasks.data.datasets import Reader
from roundweave.tasks.data.examples import Examples, check_values, tensors_of
from roundweave.tasks.numerics.devices import moved

HASHED = 256_000_000
"""Files with more bytes than this together are not read whole to show that they are unchanged."""

EDGES = 1_000_000
"""The bytes at the start, and at the end, of a large file that are read to show that it is unchanged."""

DEEP = "**/*"
"""The pattern of all files of a folder, and of those in it."""

HELD = 2
"""The number of groups of examples that a process holds, the most recent ones."""


@dataclass(frozen=True)
class File:
    """A file as it was found, at a path or an ``s3://`` address.

    `name` is its path in the folder of the examples, `size` its bytes, and `version` the time of its change in
    nanoseconds, or in a bucket its tag.
    """

    name: str
    address: str
    size: int
    version: str

    def check(self) -> None:
        """Raise `DataError` if the file is gone or has changed since it was found."""
        if file_at(self.address, self.name) != self:
            raise DataError(f"{self.address} has changed since it was opened; restore it and resume the run")

    def shown(self, edge: int | None) -> str:
        """Return what shows that the bytes are unchanged: size and digest, or in a bucket size and tag.

        With an `edge`, it is the time of change, and the digest of so many bytes at the start and at the end.
        """
        if scheme_of(self.address):
            return f"{self.size} bytes, tag {self.version}"
        when = "" if edge is None else f" of {self.version}"
        return f"{self.size} bytes{when}, {pieces_digest(self._pieces(edge))}"

    def _pieces(self, edge: int | None) -> Iterator[bytes]:
        with Path(self.address).open("rb") as file:
            if edge is not None:
                yield file.read(edge)
                file.seek(max(0, self.size - edge))
            yield from iter(lambda: file.read(EDGES), b"")


def file_at(address: str, name: str = "") -> File:
    """Return the file at an address. Raises `FileMissing`, and `DataError` for a folder, a pipe or a device."""
    name = name or address.rpartition("/")[2]
    try:
        if scheme_of(address):
            import obstore  # imported here, as below: it is slow, and files on a disk do not need it

            from roundweave.storage.places.objects import client_of

            about = obstore.head(*client_of(address))
            return File(name, address, about["size"], str(about["e_tag"]))
        found = Path(address).stat()
        if not stat.S_ISREG(found.st_mode):
            raise DataError(f"{address} is a folder, a pipe or a device; put a file in its place")
        return File(name, address, found.st_size, str(found.st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileMissing(f"there is no file {address}; restore it, so that every worker sees it") from error


def files_below(folder: str, pattern: str = DEEP) -> list[File]:
    """Return the files of a folder that match a pattern, by name. Raises `FileMissing` if there are none."""
    if scheme_of(folder):
        from roundweave.storage.places.objects import s3_place

        objects = s3_place(folder).objects().items()
        wanted = [one for one in objects if pattern == DEEP or ("/" not in one[0] and fnmatch(one[0], pattern))]
        files = [File(name, f"{folder}/{name}", about["size"], str(about["e_tag"])) for name, about in wanted]
    else:
        paths = [path for path in Path(folder).glob(pattern) if not path.is_dir()]
        files = [file_at(str(path), path.relative_to(folder).as_posix()) for path in paths]
    if not files:
        raise FileMissing(f"there is no file {pattern} in {folder}; name a folder or a pattern with some")
    return sorted(files, key=lambda file: file.name)


@dataclass(frozen=True, eq=False)
class FileReader(Reader):
    """Reads `count` examples of files by `load`, a function of their rows, int64 (row,). Messages say `where`.

    `starts`, int64 (group + 1,), has the first row of each group and the number of examples. With `starts`, `load`
    is a function of a group's number, and reads the group as a whole. `targets` are in memory, or None; then
    `largest` finds the largest label.
    """

    found: Sequence[File]
    hash_data: bool
    where: str
    count: int
    load: Callable[[Any], Examples]
    targets: torch.Tensor | None = None
    starts: np.ndarray | None = None
    largest: Callable[[], int] = lambda: -1

    def __len__(self) -> int:
        return self.count

    @functools.cached_property
    def groups(self) -> np.ndarray | None:
        """The group of each example, int64 (example,), if there are groups."""
        return None if self.starts is None else np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @functools.cached_property
    def _group(self) -> Callable[[int], Examples]:
        return functools.lru_cache(HELD)(self.load)

    def read(self, rows: np.ndarray) -> Examples:
        """Return the examples at some rows, int64 (row,). Raises `DataError` for numbers that are not finite."""
        read = self.load(rows) if self.starts is None else self._gathered(self.starts, rows)
        return check_values(read, self.where, rows)

    def _gathered(self, starts: np.ndarray, rows: np.ndarray) -> Examples:
        """Return the examples at some rows, int64 (row,), of the groups that begin at `starts`."""
        numbers, whole = np.searchsorted(starts, rows, "right") - 1, None
        # In the order in which they come, so that the last one is still held for the next batch.
        for number in dict.fromkeys(numbers.tolist()):
            places = np.flatnonzero(numbers == number)
            part = self._group(number).read(rows[places] - starts[number])
            whole = whole or moved(part, lambda tensor: tensor.new_empty((len(rows), *tensor.shape[1:])))
            for source, target in zip(tensors_of(part), tensors_of(whole), strict=True):
                target[torch.from_numpy(places)] = source
        assert whole is not None
        return whole

    @property
    def classes(self) -> int:
        """One more than the largest label, if targets are not in memory."""
        return 0 if self.targets is not None else self.largest() + 1

    @functools.cached_property
    def files(self) -> dict[str, str]:
        """What shows that each file, or all files of a folder, are unchanged."""
        large = not self.hash_data and sum(file.size for file in self.found) > HASHED
        found: dict[str, dict[str, str]] = {}
        for file in self.found:
            shown = file.shown(EDGES // len(self.found) if large else None)
            found.setdefault(file.name.partition("/")[0], {})[file.name] = shown
        return {name: inner[name] if name in inner else json_digest(inner) for name, inner in found.items()}
