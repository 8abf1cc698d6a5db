"""Open files and folders of the operating system: how they are opened, written, synced and deleted."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from roundweave.storage.errors import StoreError
from roundweave.storage.places.base import Piece

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# Without O_NONBLOCK, opening a named pipe would wait for its writer.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

SMALL = 1 << 26
"""Files of at most so many bytes are read without checking how much memory is left."""


def refuse_larger_than_memory(size: int, path: Path | str) -> None:
    """Raise `StoreError` for a file larger than the free memory, since reading it would kill the process."""
    if size > SMALL and size > (free := psutil.virtual_memory().available):
        raise StoreError(f"{path} would take {size / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are left")


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
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(descriptor: int) -> None:
    """Sync the file system of an open file or folder; all file systems where the platform has no `syncfs`."""
    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "syncfs"):
        os.sync()
    elif system.syncfs(descriptor):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
