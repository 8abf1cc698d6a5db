"""Who is told how a run goes: a bar, Prefect, a caller. Needs no Prefect, so it can come before it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Protocol

from storage.rounds.commits import Commit


class Listener(Protocol):
    """What is told of a run while it goes on."""

    def committed(self, commit: Commit, rounds: int) -> None:
        """A round was committed, of so many that there are to be."""
        ...

    def notice(self, text: str) -> None:
        """Something happened that a person should know: one line."""
        ...


_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within, a listener is told, too."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


def tell_commit(commit: Commit, rounds: int) -> None:
    """Tell all listeners of a round."""
    for listener in _listeners.get():
        listener.committed(commit, rounds)


def notice(text: str) -> None:
    """Tell all listeners one line; standard error where there is none."""
    for listener in _listeners.get():
        listener.notice(text)
    if not _listeners.get():
        print(text, file=sys.stderr)


def notice_from_anywhere() -> Callable[[str], None]:
    """`notice` to those who listen now, for callers in other threads."""
    context = copy_context()
    return lambda text: context.copy().run(notice, text)
