"""Reports by a thread that follows a training, which waits neither for Prefect's imports nor for its server.

This module does not import Prefect, so it can be used before Prefect is loaded.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from roundweave.flows.reporting.listening import Listener, listeners, listening, notice
from roundweave.flows.serving.server import in_flow
from roundweave.storage.errors import one_line
from roundweave.storage.rounds.commits import Commit

T = TypeVar("T")

Report = Callable[[Callable[[], Any]], Any]
"""Calls a function and reports what it does, such as a flow run of it; returns what that returns."""

PATIENCE_SECONDS = 3.0
"""How long the thread lets the first round go first: importing Prefect takes a second of this process's time."""


class Follower(Listener):
    """What a thread reports of a function, in order and perhaps later; the thread has listeners of its own."""

    def __init__(self) -> None:
        self.under_way = threading.Event()
        self._events: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._others = len(listeners())
        self._error: BaseException | None = None

    def committed(self, commit: Commit, rounds: int) -> None:
        """Have the thread's own listeners notified of a round."""
        self._put(lambda listener: listener.committed(commit, rounds))
        self.under_way.set()

    def notice(self, text: str) -> None:
        """Have the thread's own listeners notified of a line."""
        self._put(lambda listener: listener.notice(text))

    def _put(self, event: Callable[[Listener], object]) -> None:
        # The thread inherits the listeners of this one, which are notified of it here.
        self._events.put(lambda: [event(listener) for listener in listeners()[self._others :]])

    def observe(self, function: Callable[[], T], report: Report | None = None) -> T:
        """Call a function whose end `follow` learns, which the `report` in the thread calls in its place."""
        if report is not None:
            self._events.put(partial(report, self.follow))
        end: BaseException = _Ended()
        try:
            return function()
        except BaseException as error:
            self._error = end = error
            raise
        finally:
            self._events.put(partial(_raise, end))

    def follow(self) -> None:
        """Stand for the function: make the reports of it until it ends, and raise what it raised."""
        with suppress(_Ended):
            while True:
                self._events.get()()

    def work(self, report: Report) -> None:
        """Report the outermost function, in a thread that lets its first round go first."""
        self.under_way.wait(PATIENCE_SECONDS)
        try:
            report(self.follow)
        except BaseException as error:  # noqa: BLE001 - of which the training does not depend
            if error is not self._error:
                notice(f"Prefect was not told all ({one_line(error)}); the run itself is not affected")


class _Ended(Exception):
    """Ends what stands for a function that has returned."""


def _raise(error: BaseException) -> NoReturn:
    raise error


_follower: ContextVar[Follower | None] = ContextVar("follower", default=None)


def reported(report: Report, function: Callable[[], T]) -> T:
    """Call a function that `report` is about: it runs in the thread that follows, or in a flow run around it."""
    if follower := _follower.get():
        return follower.observe(function, report)
    value: T = report(function) if in_flow() else function()
    return value


def followed(report: Report, function: Callable[[], T]) -> T:
    """Call a function that a new thread reports on, and wait for that; within a flow run as `reported` does.

    Meanwhile SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does.
    """
    if in_flow():
        return reported(report, function)
    follower = Follower()
    thread = threading.Thread(target=copy_context().run, args=(follower.work, report), daemon=True)
    thread.start()
    token = _follower.set(follower)
    try:
        with listening(follower), _ended_in_order():
            return follower.observe(function)
    finally:
        _follower.reset(token)
        follower.under_way.set()
        thread.join()


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Have SIGTERM, which would end this process at once, raise `KeyboardInterrupt` in its main thread."""
    apart = threading.current_thread() is not threading.main_thread()
    if apart or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
