"""Several requests at once: where a place is far away, waiting for one after another takes most of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from storage.places.base import Place

AHEAD = 2
"""How many calls are under way beside what else is done; each holds what it writes in memory."""

LARGE = 1 << 20
"""Bytes of what takes so much longer to write (2 MB: 1 to 6 ms) than to hand to a thread (0.1 ms) that it is done
beside on any place.
"""


Item = TypeVar("Item")
Result = TypeVar("Result")


def together(place: Place, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """What a function gives for each item, in order; as many calls at once as the place likes."""
    given = list(items)
    if place.at_once == 1 or len(given) < 2:
        return [function(item) for item in given]
    with ThreadPoolExecutor(min(place.at_once, len(given))) as pool:
        return list(pool.map(function, given))


@contextmanager
def beside(place: Place, size: int) -> Iterator[Callable[..., Future[Any]]]:
    """Within, calls that write so many bytes each are made beside what else is done, where that pays.

    Gives a function that calls another and gives its result as a future; at the end all are done.
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
