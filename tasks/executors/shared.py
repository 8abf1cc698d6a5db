"""Contexts that change the whole process, such as its environment, where several threads are in them at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def shared(context: Callable[P, AbstractContextManager[T]]) -> Callable[P, AbstractContextManager[T]]:
    """A decorator: threads that are in this context at once share it.

    The first one enters it, with its own arguments, and the last one to leave exits it.
    """
    lock, stack = threading.Lock(), ExitStack()
    within: list[T] = []

    @contextmanager
    def entered(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        with lock:
            within.append(within[0] if within else stack.enter_context(context(*args, **kwargs)))
        try:
            yield within[0]
        finally:
            with lock:
                within.pop()
                if not within:
                    stack.__exit__(*sys.exc_info())

    return entered
