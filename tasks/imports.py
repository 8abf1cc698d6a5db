"""Imports of large libraries: what they make stays, and looking for garbage in it takes a quarter of the time."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module


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
        if own and "triton" not in sys.modules:  # it tells on the terminal of all that is left of it at the end
            gc.freeze()
        if collecting:
            gc.enable()


class Importing:
    """Modules that a thread imports, beside what takes its time otherwise; `join` it before any of them is used.

    Two threads that import what imports one another may see half of it. A process waits for it at its end, too:
    one that ends while a thread imports may be aborted.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def join(self) -> None:
        """Wait for it; who imports what failed is told why."""
        self._thread.join()

    def _work(self) -> None:
        with kept():
            for module in self._modules:
                with suppress(ImportError):
                    import_module(module)
