"""Memory that ranks of one machine share: its owner writes, the others read.

It has no name in any folder and is gone with its last process, however that ends.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Handle:
    """How another process of this machine finds a memory."""

    process: int
    file: int


class OwnMemory:
    """What this process writes; raises `OSError` where the system has no such memory, or not enough."""

    def __init__(self) -> None:
        self._file = os.memfd_create("roundweave", os.MFD_CLOEXEC)
        self._memory: mmap.mmap | None = None
        self.handle = Handle(os.getpid(), self._file)

    def view(self, size: int) -> memoryview:
        """At least so many bytes of it, (byte,): it grows where it is too small."""
        if self._memory is None or len(self._memory) < size:
            room = size + size // 4
            os.posix_fallocate(self._file, 0, room)
            self._memory = mmap.mmap(self._file, room)
        return memoryview(self._memory)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._file)


class OtherMemory:
    """What another process has written; raises `OSError` where it cannot be reached."""

    def __init__(self, handle: Handle) -> None:
        self._file = os.open(f"/proc/{handle.process}/fd/{handle.file}", os.O_RDONLY)
        self._memory: mmap.mmap | None = None

    def view(self, room: int) -> memoryview:
        """The memory, (byte,), which has so many bytes by now."""
        if self._memory is None or len(self._memory) != room:
            self._memory = mmap.mmap(self._file, room, prot=mmap.PROT_READ)
        return memoryview(self._memory)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._file)
