"""How much memory this process takes."""

from __future__ import annotations

import resource
import sys

KILO = 1 if sys.platform == "darwin" else 1024
"""Bytes of the unit in which the system tells it."""


def most_memory() -> int:
    """The most that this process has held of the machine's memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILO
