"""The timing of maps in this process, and which of them are stragglers. It decides no bits."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass

Notice = Callable[[str], None]
"""Tells the user one line, while work is waited for."""

log_notice: Notice = logging.getLogger("roundweave").warning

MUCH_LONGER = 5
"""How many times as long as the others a map may take before it is told."""


@dataclass(frozen=True)
class Timing:
    """The map under way, its partition None for none, for so many seconds; `took` is what the last one took."""

    round: int = 0
    partition: int | None = None
    seconds: float = 0.0
    took: float | None = None


_under_way: tuple[int, int, float] | None = None
_took: float | None = None


@contextmanager
def mapping(round: int, partition: int) -> Iterator[None]:
    """Within, this process maps a partition; there is one map at a time."""
    global _under_way, _took  # noqa: PLW0603 (it is of the process)
    began = time.perf_counter()
    _under_way = round, partition, began
    try:
        yield
        _took = time.perf_counter() - began
    finally:
        _under_way = None


def timing() -> Timing:
    """The map under way in this process, and what the last one took."""
    if _under_way is None:
        return Timing(took=_took)
    round, partition, began = _under_way
    return Timing(round, partition, time.perf_counter() - began, _took)


class Stragglers:
    """Notifies of maps under way for `patience` seconds and much longer than others took.

    It notifies again of each whenever its time has doubled.
    """

    def __init__(self, patience: float, notice: Notice) -> None:
        self.patience = patience
        self.notice = notice
        self._told: dict[tuple[int, int], float] = {}

    def look(self, timings: Sequence[Timing]) -> None:
        """Look at the timing of each process, and notify of stragglers."""
        others = [each.took for each in timings if each.took is not None]
        took = statistics.median(others) if others else None
        for each in timings:
            if each.partition is None:
                continue
            told = self._told.get((each.round, each.partition))
            if each.seconds >= (2 * told if told else max(self.patience, MUCH_LONGER * (took or 0.0))):
                self._told[each.round, each.partition] = each.seconds
                compared = "none has ended yet" if took is None else f"the others took {_seconds(took)} s"
                self.notice(
                    f"round {each.round}: partition {each.partition} has been mapping for "
                    f"{_seconds(each.seconds)} s, {compared}"
                )


@contextmanager
def watched(patience: float, notice: Notice) -> Iterator[None]:
    """Within, stragglers among the maps of this process are looked for."""
    done = threading.Event()

    def look() -> None:
        stragglers = Stragglers(patience, notice)
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
