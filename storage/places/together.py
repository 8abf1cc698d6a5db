"""Several requests at once: where a place is far away, waiting for one after another takes most of the time."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from storage.places.base import Place

AHEAD = 2
"""How many calls are under way beside what else is done; each holds what it writes in memory."""


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
def beside(place: Place) -> Iterator[Callable[..., None]]:
    """Within, calls are made beside what else is done, where the place likes that; at the end they are done."""
    if place.at_once == 1:
        yield _at_once
        return
    waiting: deque[Future[Any]] = deque()

    def call(function: Callable[..., Any], *arguments: Any) -> None:
        if len(waiting) == AHEAD:
            waiting.popleft().result()
        waiting.append(pool.submit(functools.partial(function, *arguments)))

    with ThreadPoolExecutor(AHEAD) as pool:
        yield call
        for future in waiting:
            future.result()


def _at_once(function: Callable[..., Any], *arguments: Any) -> None:
    function(*arguments)
