"""Files and folders by descriptors: each is opened in the open folder above it, and no link is followed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress

from storage.places.base import Piece

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


# A pipe that is opened to be read waits for its writer, unless it is told not to.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def make_folder(name: str, folder: int, durable: bool) -> None:
    """Make a folder in an open one, unless another process has just done so."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    if durable:
        os.fsync(folder)


def remove_file(name: str, folder: int) -> None:
    """Delete a file in an open folder where it is there."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def write_and_close(descriptor: int, pieces: Iterable[Piece], durable: bool) -> None:
    """Write all of the pieces to an open file, and close it."""
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
    """Make what is open survive a power loss, and close it."""
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(descriptor: int) -> None:
    """Make the file system of what is open survive a power loss; all of them where there is no such call."""
    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "syncfs"):
        os.sync()
    elif system.syncfs(descriptor):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
