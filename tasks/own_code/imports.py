"""Imports of large libraries, without the search for garbage in what stays, which takes a quarter of the time."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module


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


class Importing:
    """Modules that a thread imports while others work; `join` it before any of them is used.

    Two threads that import modules which import one another may see half of them. A process waits for the thread
    at its end, too, for one that ends while a thread imports may be aborted.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread. What an import fails with is raised where the module is imported next."""
        self._thread.join()

    def _work(self) -> None:
        with kept():
            for module in self._modules:
                with suppress(ImportError):
                    import_module(module)
