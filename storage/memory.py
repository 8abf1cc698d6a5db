"""Whether there is memory for what a store asks for, told before it is taken: else the system ends the process."""

from __future__ import annotations

import psutil

from storage.errors import StoreError

SMALL = 1 << 26
"""Bytes for which nobody looks."""


def check_memory(size: int, what: str) -> None:
    """Raise `StoreError` where so many bytes are more than the machine has left."""
    if size > SMALL and size > (free := psutil.virtual_memory().available):
        raise StoreError(f"{what} would take {size / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are left")
