"""Who is told how a run goes: a bar, Prefect, a caller. Needs no Prefect, so it can come before it.

What executors have to say (a lost worker, a map that hangs) they log as `roundweave`, a line each. While
somebody listens it goes to the listeners, and nowhere else.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from storage.errors import printable

if TYPE_CHECKING:
    from storage.rounds.commits import Commit


class Listener:
    """What is told of a run while it goes on; each kind takes what it wants to know."""

    def committed(self, commit: Commit, rounds: int) -> None:
        """A round was committed, of so many that there are to be."""

    def progressed(self, done: int, total: int, text: str) -> None:
        """So many parts of work that makes no rounds are done; the text tells of the last one."""

    def notice(self, text: str) -> None:
        """Something happened that a person should know: one line."""


_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within, a listener is told, too."""
    token = _listeners.set((*_listeners.get(), listener))
    _route_log()
    try:
        yield
    finally:
        _listeners.reset(token)
        _route_log()


begun: list[str] = []
"""The runs that this process began to write, or to go on with, by name."""


def going_on(name: str | None) -> str:
    """What is kept of a run that is cut off, and how it goes on; nothing where there is no run."""
    return (
        f"committed rounds are kept, `roundweave resume {name}` goes on"
        if name
        else "nothing was stored since it began"
    )


def tell_commit(commit: Commit, rounds: int) -> None:
    """Tell all listeners of a round."""
    for listener in _listeners.get():
        listener.committed(commit, rounds)


def tell_progress(done: int, total: int, text: str) -> None:
    """Tell all listeners how far work is that makes no rounds."""
    for listener in _listeners.get():
        listener.progressed(done, total, text)


def notice(text: str) -> None:
    """Tell all listeners one line; standard error where there is none."""
    for listener in _listeners.get():
        listener.notice(printable(text))
    if not _listeners.get():
        print(printable(text), file=sys.stderr)


class Raises(Listener):
    """A listener that has the others told of a partition that is refused as its map raised: the first time."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def committed(self, commit: Commit, rounds: int) -> None:
        """Tell of those that are new."""
        for partition, record in commit.updates.items():
            if record.raised and partition not in self._told:
                self._told.add(partition)
                notice(f"round {commit.round} refused partition {partition}: {record.refused}")


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        notice(record.getMessage())


_log, _notices = logging.getLogger("roundweave"), _Notices()


def _route_log() -> None:
    heard = bool(_listeners.get())
    _log.propagate = not heard
    if heard:
        _log.addHandler(_notices)
    else:
        _log.removeHandler(_notices)
