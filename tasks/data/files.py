"""Files of examples that are larger than memory: which there are, and what shows that they are the same."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import DataError, FileMissing
from storage.places.addresses import scheme_of
from storage.values.hashing import pieces_digest

HASHED = 256_000_000
"""Files that together have more bytes than this are not read whole to show that they are the same."""

EDGE = 1_000_000
"""So many bytes at the start and at the end are read of a large file."""


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
        """Raise `DataError` if the file is gone, or is another one than the one that was found."""
        if file_at(self.address, self.name) != self:
            raise DataError(f"{self.address} has changed since it was opened: restore it, and begin again")

    def shown(self, edge: int | None) -> str:
        """What shows that the bytes are the same: size and digest, or in a bucket size and tag.

        With an `edge`, it is the time of change, and the digest of so many bytes at the start and at the end.
        """
        if scheme_of(self.address):
            return f"{self.size} bytes, tag {self.version}"
        when = "" if edge is None else f", changed at {self.version}"
        return f"{self.size} bytes{when}, {pieces_digest(self._pieces(edge))}"

    def _pieces(self, edge: int | None) -> Iterator[bytes]:
        if edge == 0:
            return
        with Path(self.address).open("rb") as file:
            if edge is None:
                yield from iter(lambda: file.read(EDGE), b"")
                return
            yield file.read(edge)
            file.seek(max(0, self.size - edge))
            yield file.read(edge)

    def source(self) -> Any:
        """What pyarrow reads: the path, or an object that reads in a bucket."""
        if not scheme_of(self.address):
            return self.address
        import obstore

        return obstore.open_reader(*client_of(self.address))


def shown(files: Sequence[File], whole: bool, edge: int = EDGE) -> dict[str, str]:
    """What shows that files are the same, by name; see `File.shown`. If `whole`, all of them are read whole."""
    small = whole or sum(file.size for file in files) <= HASHED
    return {file.name: file.shown(None if small else edge) for file in files}


def differing_files(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """A text that says which file is not as it was; empty if all are."""
    name = next((name for name in sorted({**then, **now}) if then.get(name) != now.get(name)), None)
    if name is None:
        return ""
    return (
        f"{name} {'has other bytes' if name in then and name in now else 'is gone' if name in then else 'is new'}"
    )


def file_at(address: str, name: str = "") -> File:
    """The file at an address; raises `FileMissing`."""
    name = name or address.rpartition("/")[2]
    try:
        if scheme_of(address):
            import obstore

            about = obstore.head(*client_of(address))
            return File(name, address, about["size"], str(about["e_tag"]))
        about_it = Path(address).stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileMissing(
            f"there is no file {address}; every worker must see it, as long as the run lasts"
        ) from error
    return File(name, address, about_it.st_size, str(about_it.st_mtime_ns))


def files_below(folder: str, pattern: str = "*", deep: bool = False) -> list[File]:
    """The files of a folder whose names match a pattern, by name; `deep`: also those of folders in it.

    Raises `FileMissing` if there are none.
    """
    if scheme_of(folder):
        found = _objects(folder)
    else:
        paths = Path(folder).rglob(pattern) if deep else Path(folder).glob(pattern)
        found = [file_at(str(path), path.relative_to(folder).as_posix()) for path in paths if path.is_file()]
    files = [file for file in found if fnmatch.fnmatch(file.name, pattern) and (deep or "/" not in file.name)]
    if not files:
        raise FileMissing(f"there are no files {pattern} in {folder}; name a folder or a pattern with some")
    return sorted(files, key=lambda file: file.name)


def _objects(folder: str) -> list[File]:
    """All objects below an address; raises `PlaceError`."""
    from storage.places.objects import s3_place

    return [
        File(key, f"{folder}/{key}", about["size"], str(about["e_tag"]))
        for key, about in s3_place(folder).objects().items()
    ]


def client_of(address: str) -> tuple[Any, str]:
    """The client of a bucket, and the key of an address in it."""
    from storage.places.objects import client_of

    return client_of(address)
