"""Ctrl-C: the first one ends the command in order, further ones are ignored, and after 8 s it ends by force."""

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
"""The time after which an interrupted command ends by force; committed rounds are safe in any case."""


@contextmanager
def ended_by_interrupts(say: Callable[[], None]) -> Iterator[None]:
    """At Ctrl-C, raise `KeyboardInterrupt` in the block once, call `say` once, and end the process.

    Whatever error the block ends with after that, nothing but `say` prints. A `KeyboardInterrupt` from elsewhere
    also leads to one call of `say`.
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
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # holds to the end, unlike handlers, which Python drops
            logging.disable()  # interrupted work would log tracebacks
            # An exception raised inside one of Python's own callbacks is printed as ignored and lost. Then nothing
            # is printed here, and the command ends by force.
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
    """Kill this process and all it has started, as libraries' exit handlers would take time or print."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
