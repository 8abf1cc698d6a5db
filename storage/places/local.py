"""A folder of the local disk: all that touches the files of a run."""

from __future__ import annotations

import errno
import functools
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ParamSpec, TypeVar

import numpy as np

from storage.errors import PlaceError, PlaceTaken, StoreError
from storage.places.base import Piece

if TYPE_CHECKING:
    from zarr.abc.store import Store

PARTIAL = ".partial"
"""How the names of half-written files end."""


REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room there; what is committed is kept"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give a folder that you may write"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "name a folder"),
    errno.ENAMETOOLONG: "give it a shorter name",
}
"""What to do about what the system says."""


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _telling(act: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Have a method of a place tell what the system refuses as a `PlaceError`, in one line."""

    def decorate(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(method)
        def telling(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
            try:
                return method(*arguments, **options)
            except StoreError:
                raise
            except OSError as error:
                place, *keys = map(str, arguments)
                path = Path(place, *keys[:1])
                remedy = REMEDIES.get(error.errno or 0, "is the disk sound?")
                raise PlaceError(f"cannot {act} {path}: {error.strerror or error}; {remedy}") from error

        return telling

    return decorate


@dataclass(frozen=True)
class LocalPlace:
    """A folder; its files are written beside their names and then renamed or linked to them."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def at(self, prefix: str) -> LocalPlace:
        """The folder under this one."""
        return replace(self, path=self._path(prefix))

    @_telling("read")
    def has(self, key: str) -> bool:
        """Whether there is a file."""
        return self._path(key).is_file()

    @_telling("read")
    def names(self, prefix: str = "") -> list[str]:
        """The names in a folder, ascending; half-written files are not there."""
        try:
            with os.scandir(self._path(prefix)) as entries:
                return sorted(entry.name for entry in entries if not entry.name.endswith(PARTIAL))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @_telling("read")
    def read(self, key: str) -> memoryview | None:
        """The bytes of a file, None where there is none."""
        try:
            return np.fromfile(self._path(key), np.uint8).data
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    @_telling("write")
    def write(self, key: str, *pieces: Piece, durable: bool = False) -> None:
        """Create or replace a file, and its folders."""
        path = self._path(key)
        with _written_beside(path, pieces, durable) as partial:
            partial.replace(path)
        if durable:
            _sync_folder(path.parent)

    @_telling("write")
    def create(self, key: str, *pieces: Piece, durable: bool = False) -> bool:
        """Create a file that is not there; a link to a name that is taken fails, also against other processes."""
        path = self._path(key)
        with _written_beside(path, pieces, durable) as partial:
            try:
                os.link(partial, path)
            except FileExistsError:
                return False
        if durable:
            _sync_folder(path.parent)
        return True

    @_telling("delete")
    def delete(self, prefix: str) -> None:
        """Delete a file, or a folder with all that is in it."""
        path = self._path(prefix)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @_telling("write")
    def sweep(self) -> None:
        """Delete half-written files, here and below."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                if name.endswith(PARTIAL):
                    Path(folder, name).unlink(missing_ok=True)

    @contextmanager
    def aside(self) -> Iterator[LocalPlace]:
        """A folder beside this one, which gets its name at the end."""
        # Not named after it, whose name may be as long as names can be.
        partial = self.path.with_name(f".{secrets.token_hex(8)}{PARTIAL}")
        replace(self, path=self.path.parent).make()
        try:
            yield replace(self, path=partial)
            self._take(partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @_telling("write")
    def make(self) -> None:
        """Make the folder, where it is not there; raises `PlaceError` where nothing can be written in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with _written_beside(self.path / "any", (), durable=False):
            pass

    @_telling("write")
    def _take(self, folder: Path) -> None:
        try:
            folder.rename(self.path)
        except OSError as error:
            if self.path.exists():
                raise PlaceTaken(f"{self} exists already") from error
            raise

    def zarr(self) -> Store:
        """The folder as zarr reads it."""
        from zarr.storage import LocalStore  # it takes a second, which checkpoints need not wait for

        return LocalStore(self.path, read_only=True)

    def _path(self, key: str) -> Path:
        if key.startswith("/") or ".." in key.split("/"):
            raise StoreError(f"{key!r} leads out of {self}")
        return self.path / key


@contextmanager
def _written_beside(path: Path, pieces: tuple[Piece, ...], durable: bool) -> Iterator[Path]:
    """A half-written file with all of the pieces, gone at the end unless it was renamed."""
    # Not named after the file, whose name may be as long as names can be.
    partial = path.with_name(f".{secrets.token_hex(8)}{PARTIAL}")
    try:
        with _opened(partial) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            if durable:
                os.fsync(file.fileno())
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _opened(path: Path) -> BinaryIO:
    """A new file, in a folder that is made where it is not there."""
    try:
        return path.open("xb", buffering=0)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb", buffering=0)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
