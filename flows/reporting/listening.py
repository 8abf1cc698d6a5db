"""Listeners, which are notified of a run's events: a progress bar, Prefect's page, a caller.

This module does not import Prefect, so it can be used before Prefect is loaded: a thread that follows a training
tells Prefect of it, and the training waits neither for the imports of that nor for a server.

Executors log what happens to them (a lost worker, a straggler) with the logger `roundweave`, one line each. While
there is a listener, these lines go to the listeners and nowhere else.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from roundweave.storage.errors import one_line, printable

if TYPE_CHECKING:
    from roundweave.storage.rounds.commits import Commit, Score


class Listener:
    """Is notified of a run's events; a subclass overrides the methods for the events that it wants."""

    def named(self, name: str) -> None:
        """Called when the name of the run is decided, before anything is looked up."""

    def began(self, address: str) -> None:
        """Called when the run at this address is open for its rounds, before the first of them."""

    def committed(self, commit: Commit, rounds: int) -> None:
        """Called when a round was committed; the run is to have `rounds` of them."""

    def progressed(self, done: int, total: int, text: str) -> None:
        """Called during work other than rounds: `done` of `total` parts are done, `text` describes the last."""

    def skipped(self, text: str) -> None:
        """Called if the configuration says that there is nothing to do; the text says why."""

    def notice(self, text: str) -> None:
        """Called with one line of text that a person should read."""


_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Add a listener while the context is open."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


Report = Callable[[Callable[[], Any]], Any]
"""Calls a function and reports what it does, such as a flow run of it; returns what that returns."""

PATIENCE_SECONDS = 5.0
"""How long reports let the first round go first: importing Prefect takes a second of this process's time."""


class Follower(Listener):
    """Has a thread report what a function does, in order and perhaps later, to listeners that the thread adds."""

    def __init__(self) -> None:
        self.under_way = threading.Event()
        self._others = len(_listeners.get())  # the thread inherits these, which are notified by this one
        self._events: SimpleQueue[Any] = SimpleQueue()

    def began(self, address: str) -> None:
        """Have the thread's own listeners notified of the run."""
        self._put(lambda listener: listener.began(address))

    def committed(self, commit: Commit, rounds: int) -> None:
        """Have the thread's own listeners notified of a round."""
        self._put(lambda listener: listener.committed(commit, rounds))
        self.under_way.set()

    def notice(self, text: str) -> None:
        """Have the thread's own listeners notified of a line."""
        self._put(lambda listener: listener.notice(text))

    def _put(self, event: Callable[[Listener], object]) -> None:
        self._events.put(lambda: [event(listener) for listener in _listeners.get()[self._others :]])

    def observe(self, report: Report, function: Callable[[], Any]) -> Any:
        """Call a function, while the thread calls `report` with one that stands for it and ends as it ends."""
        outcome: Future[Any] = Future()
        self._events.put(partial(report, partial(self._follow, outcome)))
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            outcome.set_exception(error)
        self._events.put(outcome)
        return outcome.result()

    def _follow(self, outcome: Future[Any]) -> Any:
        while (event := self._events.get()) is not outcome:
            event()
        return outcome.result()

    def work(self) -> None:
        """Report the first function that is observed, and what is observed while it is called."""
        self.under_way.wait(PATIENCE_SECONDS)
        self._events.get()()


def follow(report: Report, function: Callable[[], Any]) -> Any:
    """Call a function that a thread reports, and wait for that; within a flow run it is reported in place.

    Meanwhile SIGTERM raises `KeyboardInterrupt` in the main thread, as Ctrl-C does.
    """
    if in_flow():
        return report(function)
    follower, before = Follower(), signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(copy_context().run, follower.work)
        try:
            with suppress(ValueError):  # this is not the main thread
                signal.signal(signal.SIGTERM, signal.default_int_handler)
            with listening(follower):
                return follower.observe(report, function)
        finally:
            follower.under_way.set()
            if (error := told.exception()) not in (None, raised := sys.exc_info()[1]):
                notice(f"Prefect did not get all reports ({one_line(error)}); the run itself is not affected")
                if raised is None and isinstance(error, ValidationError):  # a setting is wrong, and stays so
                    raise error
            with suppress(ValueError):
                signal.signal(signal.SIGTERM, before)


def reported(report: Report, function: Callable[[], Any]) -> Any:
    """Call a function that is part of what is followed, or that a flow run calls, and report it, too."""
    for listener in _listeners.get():
        if isinstance(listener, Follower):
            return listener.observe(report, function)
    return report(function) if in_flow() else function()


def in_flow() -> bool:
    """Whether this is part of a flow or task that Prefect runs already, and which reports to an API of its own."""
    context: Any = sys.modules.get("prefect.context")
    return context is not None and bool(context.FlowRunContext.get() or context.TaskRunContext.get())


begun: list[str] = []
"""The names of the runs that this process began or resumed, in order."""


def going_on(name: str | None) -> str:
    """Return a line for a person whose run was interrupted: what is stored, and how to resume it.

    `name` is the run's name, or None if no run was begun.
    """
    resumed = f"committed rounds are kept; `roundweave resume {name}` continues"
    return resumed if name else "no run had begun, so nothing was stored"


def notify_begin(address: str) -> None:
    """Notify all listeners that a run is open for its rounds."""
    for listener in _listeners.get():
        listener.began(address)


def notify_commit(commit: Commit, rounds: int) -> None:
    """Notify all listeners of a committed round."""
    for listener in _listeners.get():
        listener.committed(commit, rounds)


def notify_progress(done: int, total: int, text: str) -> None:
    """Notify all listeners of the progress of work other than rounds."""
    for listener in _listeners.get():
        listener.progressed(done, total, text)


def notify_name(name: str) -> None:
    """Notify all listeners of the name of the run to train."""
    for listener in _listeners.get():
        listener.named(name)


def notify_skip(text: str) -> None:
    """Notify all listeners that there is nothing to do, which is a notice, too."""
    for listener in _listeners.get():
        listener.skipped(text)
    notice(text)


def notice(text: str) -> None:
    """Send one line of text to all listeners, or to standard error if there are none."""
    for listener in _listeners.get():
        listener.notice(printable(text))
    if not _listeners.get():
        print(printable(text), file=sys.stderr)


class Raises(Listener):
    """A listener that sends a notice when a partition's map raised an error, once for each partition.

    `called` gives what a partition is called.
    """

    def __init__(self, called: Callable[[int], str]) -> None:
        self.called = called
        self._noticed: set[int] = set()

    def committed(self, commit: Commit, rounds: int) -> None:
        """Send a notice for each partition that failed in this round and had not failed before."""
        for partition, record in commit.updates.items():
            if record.raised and partition not in self._noticed:
                self._noticed.add(partition)
                notice(f"round {commit.round} refused {self.called(partition)}: {record.refused}")


def _to_listeners(record: logging.LogRecord) -> bool:
    """Send a line of the log `roundweave` to the context's listeners, or if there are none to usual handlers."""
    if _listeners.get():
        notice(record.getMessage())
    return not _listeners.get()


logging.getLogger("roundweave").addFilter(_to_listeners)


SHARES = ("accuracy", "top5", "token_accuracy")
"""Scores that are shown as percentages."""


FORMATS = {"seconds": ".3f", "share": ".1%", "staleness": ".2f", "received_bytes": ",.0f", "sent_bytes": ",.0f"}
"""Number formats of table columns that are not scores."""


def shown(name: str, value: float | None) -> str:
    """Return a loss or a score as text: what is of `SHARES`, as percentages, a dash for None and NaN."""
    from roundweave.storage.rounds.commits import derived_of  # slow to import

    if value is None or math.isnan(value):
        return "–"
    return format(value, ".4f" if {name, derived_of(name)}.isdisjoint(SHARES) else ".2%")


def shown_cell(name: str, value: Any) -> Any:
    """Return a table's cell for people: floats and None as text, all other values unchanged."""
    if value is None or isinstance(value, float):
        form = FORMATS.get(name)
        known = value is not None and not math.isnan(value)
        return format(value, form) if form and known else shown(name.removesuffix("_before"), value)
    return value


def shown_score(score: Score | None) -> str:
    """Return a loss and its scores in one line; empty text for None."""
    named = {} if score is None else score.numbers
    return "  ".join(f"{name} {shown(name, value)}" for name, value in named.items())


def shown_commit(commit: Commit, score: str = "") -> str:
    """Return a round in one line: its scores, else a text of earlier ones.

    And how stale its updates were, if at all.
    """
    stale = [record.arrival.staleness for record in commit.updates.values() if record.arrival]
    return "  ".join(
        filter(None, [shown_score(commit.score) or score, f"staleness {max(stale)}" if stale else ""])
    )


def finite(value: Any) -> Any:
    """Return a value that JSON can hold: infinities and NaN become None, also inside dictionaries."""
    if isinstance(value, dict):
        return {str(key): finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
