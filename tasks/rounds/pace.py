"""How maps get on in this process: which one is under way, and how long the last one took.

It is told to who waits, and decides no bits.
"""

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
class Pace:
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


def pace() -> Pace:
    """How this process gets on."""
    if _under_way is None:
        return Pace(took=_took)
    round, partition, began = _under_way
    return Pace(round, partition, time.perf_counter() - began, _took)


class Hangs:
    """Which maps to tell of: those under way for `patience` seconds and much longer than others took.

    Each is told again whenever its time has doubled.
    """

    def __init__(self, patience: float, notice: Notice) -> None:
        self.patience = patience
        self.notice = notice
        self._told: dict[tuple[int, int], float] = {}

    def look(self, paces: Sequence[Pace]) -> None:
        """Tell of the maps that take long, and were not told of lately."""
        others = [pace.took for pace in paces if pace.took is not None]
        took = statistics.median(others) if others else None
        for pace in paces:
            if pace.partition is None:
                continue
            told = self._told.get((pace.round, pace.partition))
            if pace.seconds >= (2 * told if told else max(self.patience, MUCH_LONGER * (took or 0.0))):
                self._told[pace.round, pace.partition] = pace.seconds
                compared = "none has ended yet" if took is None else f"the others took {_seconds(took)} s"
                self.notice(
                    f"round {pace.round}: partition {pace.partition} has been mapping for "
                    f"{_seconds(pace.seconds)} s, {compared}"
                )


@contextmanager
def watched(patience: float, notice: Notice) -> Iterator[None]:
    """Within, maps of this process are told of that take longer than so many seconds."""
    done = threading.Event()

    def look() -> None:
        hangs = Hangs(patience, notice)
        while not done.wait(patience / 10):
            hangs.look([pace()])

    watch = threading.Thread(target=copy_context().run, args=(look,), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1g}"
