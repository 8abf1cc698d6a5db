"""The timing of maps, and which of them are stragglers. It does not change bits."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass

notify: Callable[[str], None] = logging.getLogger("roundweave").warning
"""Called with one line for the user, while a run goes on. A flow's listeners are notified of the line."""

MUCH_LONGER = 5
"""A map that takes this many times as long as the others counts as a straggler."""


@dataclass(frozen=True)
class Timing:
    """The timing of the maps of one process, for one attempt to run rounds.

    `round`, `partition` and `seconds` are those of the map under way; the partition is None if there is none.
    `took` are the seconds of the last map that ended. `attempt` is the attempt's token.
    """

    round: int = 0
    partition: int | None = None
    seconds: float = 0.0
    took: float | None = None
    attempt: str = ""


ATTEMPT: ContextVar[str] = ContextVar("attempt", default="")
"""The token of the attempt whose step this context computes. The workers of a cluster serve several runs."""

_attempt = ""
_under_way: tuple[int, int, float] | None = None
_took: float | None = None


@contextmanager
def mapping(round: int, partition: int) -> Iterator[None]:
    """Measure a map, which runs within this context. A process runs one map at a time."""
    global _attempt, _under_way, _took  # noqa: PLW0603 (there is one for the process)
    if _attempt != ATTEMPT.get():
        _attempt, _took = ATTEMPT.get(), None
    began = time.perf_counter()
    _under_way = round, partition, began
    try:
        yield
        _took = time.perf_counter() - began
    finally:
        _under_way = None


def timing() -> Timing:
    """Return the timing of this process."""
    if _under_way is None:
        return Timing(took=_took, attempt=_attempt)
    round, partition, began = _under_way
    return Timing(round, partition, time.perf_counter() - began, _took, _attempt)


class Stragglers:
    """Notifies of stragglers: maps that have run for `patience` seconds, and much longer than others took.

    A straggler is reported again each time its seconds have doubled. `called` gives the name of a partition.
    """

    def __init__(self, patience: float, called: Callable[[int], str] = "partition {}".format) -> None:
        self.patience, self.called = patience, called
        self._notified: dict[tuple[int, int], float] = {}

    def look(self, timings: Sequence[Timing]) -> None:
        """Notify of the stragglers among the timings of all processes."""
        others = [each.took for each in timings if each.took is not None]
        took = statistics.median(others) if others else None
        for each in timings:
            if each.partition is None:
                continue
            before = self._notified.get((each.round, each.partition))
            if each.seconds >= (2 * before if before else max(self.patience, MUCH_LONGER * (took or 0.0))):
                self._notified[each.round, each.partition] = each.seconds
                compared = "none has ended yet" if took is None else f"the others took {_seconds(took)} s"
                notify(
                    f"round {each.round}: {self.called(each.partition)} has been mapping for "
                    f"{_seconds(each.seconds)} s, {compared}"
                )


@contextmanager
def watched(patience: float, called: Callable[[int], str]) -> Iterator[None]:
    """Notify of stragglers among the maps of this process while the context lasts, from a thread of its own."""
    done = threading.Event()

    def look() -> None:
        stragglers = Stragglers(patience, called)
        while not done.wait(patience / 10):
            stragglers.look([timing()])

    watch = threading.Thread(target=copy_context().run, args=(look,), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1g}"
