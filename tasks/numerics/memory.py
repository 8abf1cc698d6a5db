"""The memory of this process: the most that it has held, and what its allocator keeps of that."""

from __future__ import annotations

import ctypes
import functools
import re
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

LARGE = 64 << 20
"""States of so many bytes leave much memory behind when they have been trained, such as that of gradients."""

KILO = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of `ru_maxrss`, which differs between systems."""

LOOK_SECONDS = 0.25
"""Seconds for which an answer is used again: asking the system would take much of a short round."""


def trim_memory() -> None:
    """Return the memory that is free to the system, where the C library can; local workers keep it otherwise."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def most_memory() -> int:
    """The most memory that this process has held so far, in bytes; up to `LOOK_SECONDS` old."""
    return _most_memory(int(time.monotonic() / LOOK_SECONDS))


@functools.lru_cache(maxsize=1)
def _most_memory(moment: int) -> int:
    # On Linux `ru_maxrss` begins with the most that the parent process had held.
    with suppress(OSError):
        if peak := re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()):
            return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILO
