"""Memory that a process has freed, and that its allocator keeps for what it allocates next."""

from __future__ import annotations

import ctypes

LARGE = 64 << 20
"""States of so many bytes leave much memory behind when they have been trained, such as that of gradients."""


def trim_memory() -> None:
    """Return the memory that is free to the system, where the C library can; local workers keep it otherwise."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
