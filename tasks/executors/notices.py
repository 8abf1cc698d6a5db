"""Which worker is lost, and what is done again, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storage.errors import listed
from tasks.clusters.workers import Lost


def lost_line(lost: Lost, numbers: Sequence[int], partitions: Iterable[int], of: str = "round") -> str:
    """Who is lost, and which partitions are mapped again; the numbers are `of` rounds, or of their own turns."""
    why = f"has been silent for {lost.silent:.0f} s and is given up" if lost.silent else "is lost"
    if not lost.working and not lost.finished:
        return f"worker {lost.worker} {why}; it had no work"
    again = listed(partitions)
    if not again:
        return f"worker {lost.worker} {why}; its work is done again elsewhere"
    return f"worker {lost.worker} {why}; mapped again in {of} {listed(numbers)}: partition {again}"
