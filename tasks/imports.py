"""Imports of large libraries: what they make stays, and looking for garbage in it takes a quarter of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept(own: bool = False) -> Iterator[None]:
    """Within, no garbage is collected. In a process of our `own` what is there at the end is never looked through.

    Once it was said that a process is our own, it need not be said again.
    """
    collecting = gc.isenabled()
    own = own or gc.get_freeze_count() > 0
    gc.disable()
    try:
        yield
    finally:
        if own:
            gc.freeze()
        if collecting:
            gc.enable()
