"""Ctrl-C: the first one ends the command in order, further ones change nothing, and what hangs is left behind."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

SECONDS = 8.0
"""How long an interrupted command may take to end in order; committed rounds are safe in any case."""

_interrupted, _said = threading.Event(), threading.Event()


@contextmanager
def ended_by_interrupts(say: Callable[[], None]) -> Iterator[None]:
    """The same for the whole command, which ends with the block when it was interrupted."""
    try:
        with interruptible(say):
            yield
    finally:
        if _interrupted.is_set():
            _end()


@contextmanager
def interruptible(say: Callable[[], None]) -> Iterator[None]:
    """Within, Ctrl-C raises `KeyboardInterrupt` once; whatever then comes out of it, `say` says so and exits."""
    before = signal.signal(signal.SIGINT, lambda number, frame: _interrupt(say))
    try:
        yield
    except BaseException as error:
        if (_interrupted.is_set() or isinstance(error, KeyboardInterrupt)) and not _said.is_set():
            _said.set()
            say()
        raise
    finally:
        if not _interrupted.is_set():
            signal.signal(signal.SIGINT, before)


def _interrupt(say: Callable[[], None]) -> None:
    if not _interrupted.is_set():
        _interrupted.set()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # holds to the very end, where Python drops its own handlers
        logging.disable()  # what is cut off leaves tracebacks in logs
        # An interrupt that falls into a callback of Python's own is lost there: it would be printed as ignored.
        # The command then ends like one that hangs.
        sys.unraisablehook = lambda lost: None
        threading.Thread(target=_end_what_hangs, args=(say,), daemon=True).start()
        raise KeyboardInterrupt


def _end_what_hangs(say: Callable[[], None]) -> None:
    threading.Event().wait(SECONDS)
    if not _said.is_set():
        with suppress(SystemExit):
            say()
    _end()


def _end() -> None:
    """End this process and those it started: what libraries do at a process's end takes time, or prints."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
