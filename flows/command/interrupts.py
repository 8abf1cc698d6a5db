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


@contextmanager
def ended_by_interrupts(say: Callable[[], None]) -> Iterator[None]:
    """Raise `KeyboardInterrupt` once in the block at Ctrl-C, have `say` tell of it, and end the process.

    Whatever error the block then ends with, only `say` prints. A `KeyboardInterrupt` of another origin is told of
    in the same way.
    """
    interrupted, said = threading.Event(), threading.Event()

    def say_once() -> None:
        if not said.is_set():
            said.set()
            say()

    def end_what_hangs() -> None:
        threading.Event().wait(SECONDS)
        with suppress(SystemExit):
            say_once()
        _end()

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # holds to the very end, where Python drops its handlers
            logging.disable()  # what is cut off leaves tracebacks in logs
            # An interrupt that falls into a callback of Python's own is lost there: it would be printed as
            # ignored. The command then ends like one that hangs.
            sys.unraisablehook = lambda lost: None
            threading.Thread(target=end_what_hangs, daemon=True).start()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except BaseException as error:
        if interrupted.is_set() or isinstance(error, KeyboardInterrupt):
            say_once()
        raise
    finally:
        if interrupted.is_set():
            _end()
        signal.signal(signal.SIGINT, before)


def _end() -> None:
    """End this process and those it started: what libraries do at a process's end takes time, or prints."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
