"""Imports of large libraries, without the search for garbage in what stays, which takes a quarter of the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept(own: bool = False) -> Iterator[None]:
    """A context in which no garbage is collected.

    In a process of our `own` the collector never looks through what is there at the end. A process that was ours
    once stays so, whatever later calls say.
    """
    collecting = gc.isenabled()
    own = own or gc.get_freeze_count() > 0
    gc.disable()
    try:
        yield
    finally:
        if own and "triton" not in sys.modules:  # it tells on the terminal of all that is left of it at the end
            gc.freeze()
        if collecting:
            gc.enable()
