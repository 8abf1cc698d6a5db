"""How much memory this process takes."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

KILO = 1 if sys.platform == "darwin" else 1024
"""Bytes of the unit in which the system tells what a process has used."""


def most_memory() -> int:
    """The most that this process has held of the machine's memory so far, in bytes."""
    # What Linux tells of used resources begins with the most that the parent had held.
    with suppress(OSError):
        if told := re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()):
            return int(told[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILO
