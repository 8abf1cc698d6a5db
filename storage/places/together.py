"""Make several requests at once, since waiting for a distant place one by one would take most of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from storage.places.base import Place

AHEAD = 2
"""The most calls of `beside` that wait or run at the same time. Each holds what it writes in memory."""

LARGE = 1 << 20
"""From so many bytes on, `beside` uses a thread for any place.

Writing 2 MB to a disk takes 1 to 6 ms, and passing the call to a thread 0.1 ms.
"""


Item = TypeVar("Item")
Result = TypeVar("Result")


def together(place: Place, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call a function with each item, `place.at_once` calls at a time; the results are in the items' order."""
    every = list(items)
    if place.at_once == 1 or len(every) < 2:
        return [function(item) for item in every]
    with ThreadPoolExecutor(min(place.at_once, len(every))) as pool:
        return list(pool.map(function, every))


@contextmanager
def beside(place: Place, size: int) -> Iterator[Callable[..., Future[Any]]]:
    """A context that gives a function ``call(function, *arguments)``, which may run a call in a thread.

    `size` is the number of bytes that each call writes: small writes to a disk are made at once, as a thread would
    not pay. ``call`` returns a future. At the end of the context all calls are done, and an error of any is
    raised.
    """
    if place.at_once == 1 and size < LARGE:
        yield _at_once
        return
    waiting: deque[Future[Any]] = deque()

    def call(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if len(waiting) == AHEAD:
            waiting.popleft().result()
        waiting.append(pool.submit(function, *arguments))
        return waiting[-1]

    with ThreadPoolExecutor(AHEAD if place.at_once > 1 else 1) as pool:
        yield call
        for future in waiting:
            future.result()


def _at_once(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(function(*arguments))
    return done
