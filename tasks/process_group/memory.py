"""How much memory this process takes."""

from __future__ import annotations

import functools
import re
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

KILO = 1 if sys.platform == "darwin" else 1024
"""Bytes of the unit in which the system tells what a process has used."""


LOOK_SECONDS = 0.25
"""It is asked so often: the system takes longer to tell than a rank for much of a short round."""


def most_memory() -> int:
    """The most that this process has held of the machine's memory, in bytes, up to a moment ago."""
    return _most_memory(int(time.monotonic() / LOOK_SECONDS))


@functools.lru_cache(maxsize=1)
def _most_memory(moment: int) -> int:
    # What Linux tells of used resources begins with the most that the parent had held.
    with suppress(OSError):
        if told := re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()):
            return int(told[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILO
