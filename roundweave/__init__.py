"""The facade: ``import roundweave as rw`` gives what a notebook and one's own code need, loaded at first use.

Its names, and where each is defined, stand in the `__init__.pyi` beside it, once for the loader, types and
completion.
"""

import signal
import sys
import threading
from importlib import import_module
from typing import Any

import lazy_loader

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__ or name.startswith("__"):  # what Python asks of each module that is imported
        return _whole(name)
    from roundweave.storage.runs.names import nearest

    there = f"it has {', '.join(__all__)}"
    if name in ("fit", "run"):
        raise AttributeError(f"roundweave has no {name!r}; did you mean train, as in rw.train(rw.TrainConfig())?")
    meant = nearest(name, __all__, "see roundweave/__init__.pyi")
    raise AttributeError(f"roundweave has no {name!r}; {there}; {meant}")


def _whole(name: str) -> Any:
    """Import a name; Ctrl-C, or a notebook's stop, waits meanwhile: a half of numpy or torch stays a half."""
    asked, ours = list[int](), threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number)) if ours else None
    try:
        return _attribute(name)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        for number in asked[:1]:
            signal.raise_signal(number)


def main() -> None:
    """The `roundweave` command."""
    if sys.platform == "win32":
        sys.exit("error: Roundweave does not run on Windows; use its subsystem for Linux (WSL)")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command can say that it was interrupted
    import_module("roundweave.flows.command.app").main()
