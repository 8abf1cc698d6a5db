"""How much memory this process has used."""

from __future__ import annotations

import functools
import re
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

KILO = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of `ru_maxrss`, which differs between systems."""


LOOK_SECONDS = 0.25
"""Seconds for which an answer is used again: asking the system would take much of a short round."""


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
