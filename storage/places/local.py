"""Runs in a folder of a local disk.

A run may come from anybody, so below its folder no link is followed and only plain files are opened. Each folder
on the way to a file is opened relative to the one before it, and a link is refused. How the system opens, writes,
syncs and deletes stands first, the place after it.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from roundweave.storage.errors import DiskFull, PlaceError, PlaceTaken, StoreDamaged, StoreError
from roundweave.storage.places.base import PARTIAL, Piece, parts_of, refuse_larger_than_memory, refusing, unfenced

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# Without O_NONBLOCK, opening a named pipe would wait for its writer.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def remove_file(name: str, folder: int) -> None:
    """Delete a file in an open folder, if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def write_and_close(descriptor: int, pieces: Iterable[Piece], durable: bool) -> None:
    """Write all pieces to an open file, sync it where `durable`, and close it."""
    try:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_and_close(descriptor: int) -> None:
    """Sync an open file or folder to disk, and close it."""
    write_and_close(descriptor, (), True)


def sync_file_system(descriptor: int) -> None:
    """Sync the file system of an open file or folder; all file systems where the platform has no `syncfs`."""
    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "syncfs"):
        os.sync()
    elif system.syncfs(descriptor):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REMEDIES = {
    **dict.fromkeys(FULL, "make room there; what is committed is kept"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give a folder that you may write"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "name a folder"),
    errno.ENAMETOOLONG: "give it a shorter name",
}
"""What a message tells the user to do, by the system's error number."""


def _refusal(what: str, error: Exception) -> PlaceError | None:
    if not isinstance(error, OSError):
        return None
    kind = DiskFull if error.errno in FULL else PlaceError
    remedy = REMEDIES.get(error.errno or 0, "is the disk sound?")
    return kind(f"cannot {what}: {error.strerror or error}; {remedy}")


UNLINKED, ELSEWHERE = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS), "give another --root, such as on ext4 or NFS"

_reading, _writing, _deleting = (refusing(act, _refusal) for act in ("read", "write", "delete"))


NOT_THERE = (FileNotFoundError, NotADirectoryError)


def folder_bytes(folder: Path | str) -> int:
    """Return the bytes of all files in a folder and below, in a third of the time of `LocalPlace.sizes`."""
    size = 0
    with suppress(*NOT_THERE), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # a writer may have renamed it since it was listed
                here = entry.is_dir(follow_symlinks=False)
                size += folder_bytes(entry.path) if here else entry.stat(follow_symlinks=False).st_size
    return size


@dataclass(frozen=True)
class LocalPlace:
    """A folder on disk. A file is written under a temporary name and then renamed or linked to its own.

    Where `fsync`, every file is synced when it is written, not only those that are to be `durable`. `check` is
    that of a fenced place. It is called between making a temporary name and renaming. A later writer claims the
    run first and sweeps temporary names then: so either the check sees the claim, or the renaming finds no name.
    """

    path: Path
    fsync: bool = field(default=False, kw_only=True)
    check: Callable[[], None] = field(default=unfenced, kw_only=True, compare=False, repr=False)
    at_once: ClassVar[int] = 1

    def __str__(self) -> str:
        return str(self.path)

    def free(self) -> int | None:
        """Return the bytes that are free on the disk of the folder, or of the first one above it that is there."""
        there = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
        return shutil.disk_usage(there).free

    @_reading
    def has(self, key: str) -> bool:
        """Tell whether there is a plain file under this key."""
        with suppress(*NOT_THERE), self._around(key) as (folder, name):
            return stat.S_ISREG(self._mode(key, folder, name))
        return False

    @_reading
    def names(self, prefix: str = "") -> list[str]:
        """Return the names in a folder, ascending, without half-written files; none if there is no folder."""
        with suppress(*NOT_THERE), self._folder(parts_of(prefix, self)) as folder, os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.endswith(PARTIAL))
        return []

    @_reading
    def read(self, key: str, most: int | None = None) -> memoryview | None:
        """Return the bytes of a file; None if there is none. Raises `StoreDamaged` for more than `most` bytes.

        Raises `StoreError` if the file is larger than the memory that is left.
        """
        with self._opened(key) as file:
            if file is None:
                return None
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise StoreDamaged(f"{self.path / key} has {size} bytes, where at most {most} belong")
            refuse_larger_than_memory(size, self.path / key)
            return np.fromfile(file, np.uint8).data

    @_reading
    def read_part(self, key: str, first: int, size: int) -> memoryview | None:
        """Return up to `size` bytes of a file from offset `first`; None if there is no file."""
        with self._opened(key) as file:
            if file is None:
                return None
            file.seek(first)
            # numpy allocates what is asked for, whatever is there.
            return np.fromfile(file, np.uint8, min(size, max(0, os.fstat(file.fileno()).st_size - first))).data

    @_reading
    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of everything that is not a folder, by key, here and in all folders below."""
        sizes: dict[str, int] = {}
        with suppress(*NOT_THERE), self._folder([]) as top:
            for above, folders, files, folder in os.fwalk(dir_fd=top):
                for name in (*folders, *files):
                    with suppress(FileNotFoundError):  # a writer may have renamed it since it was listed
                        about = os.lstat(name, dir_fd=folder)
                        if not stat.S_ISDIR(about.st_mode):
                            sizes["/".join((*above.split("/")[1:], name))] = about.st_size
        return dict(sorted(sizes.items()))

    @_writing
    def write(self, key: str, *pieces: Piece, durable: bool = False) -> None:
        """Create or replace a file, and create the folders above it."""
        self.stream(key, pieces, durable)

    @_writing
    def stream(self, key: str, pieces: Iterable[Piece], durable: bool = False) -> None:
        """Create or replace a file from pieces that are produced while it is written, without holding them all."""
        with self._written_beside(key, pieces, durable) as (folder, partial, name):
            os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)

    @_writing
    def create(self, key: str, *pieces: Piece, durable: bool = False) -> bool:
        """Create a file that must not exist yet; False if it does.

        A hard link to a name that is taken fails, so of several processes exactly one succeeds.
        """
        with self._written_beside(key, pieces, durable) as (folder, partial, name):
            try:
                os.link(partial, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
            except FileNotFoundError:
                # The holder of the lease swept the temporary file together with those of former writers.
                return self.create(key, *pieces, durable=durable)
            except OSError as error:
                if error.errno not in UNLINKED:
                    raise
                raise PlaceError(f"{self}: {error.strerror}: its disk has no hard links; {ELSEWHERE}") from error
        return True

    @_deleting
    def delete(self, prefix: str) -> None:
        """Delete a file, a link, or a folder with all its content."""
        if not prefix:
            with suppress(FileNotFoundError):
                shutil.rmtree(self.path)
            return
        with suppress(*NOT_THERE), self._around(prefix) as (folder, name):
            if self.check is not unfenced:
                self._delete_fenced(folder, name)
            elif stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                shutil.rmtree(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)

    @_deleting
    def delete_names(self, prefix: str, names: Sequence[str]) -> None:
        """Delete files of these names in a folder."""
        with suppress(*NOT_THERE), self._folder(parts_of(prefix, self)) as folder:
            self._delete_fenced(folder, *(parts_of(f"{prefix}/{name}", self)[-1] for name in names))

    def _delete_fenced(self, folder: int, *names: str) -> None:
        """Delete names in an open folder, by way of a temporary folder that a later writer sweeps."""
        os.lstat(names[0], dir_fd=folder)
        partial = f".{secrets.token_hex(8)}{PARTIAL}"
        os.mkdir(partial, dir_fd=folder)
        try:
            self.check()
            for number, name in enumerate(names):
                os.rename(name, f"{partial}/{number}", src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True, dir_fd=folder)

    @_writing
    def sweep(self) -> None:
        """Delete half-written files, and half-deleted ones, here and in all folders below."""
        with suppress(*NOT_THERE), self._folder([]) as top:
            for _, folders, names, folder in os.fwalk(dir_fd=top):
                # The folder of a tensor may end so, too, but does not begin with a dot.
                deleted = [name for name in folders if name.startswith(".") and name.endswith(PARTIAL)]
                written = [name for name in names if name.endswith(PARTIAL)]
                if deleted or written:
                    self.check()  # after the lists, which so have none of a later writer
                for name in written:
                    remove_file(name, folder)
                for name in deleted:
                    folders.remove(name)
                    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)

    @_writing
    def sync(self) -> None:
        """Sync all files and folders here and below, and the folders above, which hold this folder's name."""
        with self._folder([]) as top:
            for _, _, names, folder in os.fwalk(dir_fd=top, topdown=False):
                for name in names:
                    if stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode):
                        sync_and_close(os.open(name, FILE, dir_fd=folder))
                os.fsync(folder)
        for above in self.path.absolute().parents:
            with suppress(PermissionError):
                sync_and_close(os.open(above, FOLDER))

    @_writing
    def flush(self) -> None:
        """Sync the whole file system that the folder is on, and so what any process of this machine wrote."""
        with self._folder([]) as top:
            sync_file_system(top)

    @_reading
    def age(self, key: str) -> float | None:
        """Return how many seconds ago a file was written, by the clock of its file system.

        A temporary file shows that clock.
        """
        with suppress(*NOT_THERE), self._written_beside(key, (), durable=False) as (folder, partial, name):
            written, now = (os.lstat(each, dir_fd=folder).st_mtime for each in (name, partial))
            return now - written
        return None

    def fenced(self, check: Callable[[], None]) -> LocalPlace:
        """Return this folder for a writer whose lease may be over: `check` raises an error then."""
        return replace(self, check=check)

    @contextmanager
    def aside(self) -> Iterator[LocalPlace]:
        """A context with a temporary folder beside this one, which is renamed to this one at the end."""
        # The temporary name does not contain this folder's name, which may be as long as names can be.
        partial = self.path.with_name(f".{secrets.token_hex(8)}{PARTIAL}")
        replace(self, path=self.path.parent).make()
        try:
            yield replace(self, path=partial)
            self._take(folder=partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @_writing
    def make(self) -> None:
        """Create the folder if it is missing. Raises `PlaceError` if nothing can be written in it."""
        with self._written_beside("any", (), durable=False):
            pass

    @_writing
    def _take(self, folder: Path) -> None:
        try:
            folder.rename(self.path)
        except OSError as error:
            if self.path.exists():
                raise PlaceTaken(f"{self} exists already") from error
            raise

    @contextmanager
    def _folder(self, parts: list[str], make: bool = False, durable: bool = False) -> Iterator[int]:
        """A context with the open folder at the path `parts` below this one; `make` creates missing folders."""
        if make and not self.path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path, FOLDER)
        try:
            for depth in range(len(parts)):
                above, folder = folder, self._descend(folder, parts[: depth + 1], make, durable)
                os.close(above)
            yield folder
        finally:
            os.close(folder)

    def _descend(self, folder: int, parts: list[str], make: bool, durable: bool) -> int:
        """Open the last folder of the path `parts` inside the open folder before it; `make` creates it."""
        try:
            return os.open(parts[-1], FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(parts[-1], dir_fd=folder)
            if durable:
                os.fsync(folder)
            return self._descend(folder, parts, False, durable)
        except NotADirectoryError:
            self._mode("/".join(parts), folder, parts[-1])
            raise

    @contextmanager
    def _around(self, key: str, make: bool = False, durable: bool = False) -> Iterator[tuple[int, str]]:
        """A context with the open folder that a key is in, and the key's last part, which is the name there."""
        parts = parts_of(key, self)
        with self._folder(parts[:-1], make, durable) as folder:
            yield folder, parts[-1]

    @contextmanager
    def _opened(self, key: str) -> Iterator[io.FileIO | None]:
        """A context with a plain file open for reading; None if there is none."""
        with suppress(*NOT_THERE), self._around(key) as (folder, name):
            if stat.S_ISREG(self._mode(key, folder, name)):
                with io.FileIO(os.open(name, FILE, dir_fd=folder)) as file:
                    yield file
                return
        yield None

    def _mode(self, key: str, folder: int, name: str) -> int:
        """Return the mode (type and permissions) of a name in an open folder. Raises `StoreError` for a link."""
        mode = os.lstat(name, dir_fd=folder).st_mode
        if stat.S_ISLNK(mode):
            raise StoreError(f"{self.path / key} is a link, which may lead anywhere; replace it by its content")
        return mode

    @contextmanager
    def _written_beside(self, key: str, pieces: Iterable[Piece], durable: bool) -> Iterator[tuple[int, str, str]]:
        """Write all pieces to a temporary file in the folder of a key.

        Gives the open folder, the name of the temporary file, and the name that it is to have. The temporary file
        is deleted at the end, unless it was renamed.
        """
        # The temporary name does not contain the file's name, which may be as long as names can be.
        partial, durable = f".{secrets.token_hex(8)}{PARTIAL}", durable or self.fsync
        try:
            with self._around(key, make=True, durable=durable) as (folder, name):
                try:
                    write_and_close(os.open(partial, NEW, 0o666, dir_fd=folder), pieces, durable)
                    self.check()
                    yield folder, partial, name
                    if durable:
                        os.fsync(folder)
                finally:
                    remove_file(partial, folder)
        except FileNotFoundError:
            self.check()  # a later writer swept the temporary file, or pruned its folder
            raise
