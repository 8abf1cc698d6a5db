"""The table of reduces by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tasks.algebra import Reduce
from tasks.named import make_named
from tasks.reduces.geometric_median import GeometricMedian
from tasks.reduces.krum import Krum
from tasks.reduces.mean import Mean
from tasks.reduces.median import Median
from tasks.reduces.trimmed_mean import TrimmedMean

REDUCES: Mapping[str, Callable[..., Reduce]] = {
    "mean": Mean,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "geometric_median": GeometricMedian,
}


def find_reduce(text: str) -> Reduce:
    """The reduce that a text names, with its arguments: ``median``, ``krum:1``; raises `UsageError`.

    >>> find_reduce("krum:1")
    Krum(f=1, keep=1)
    """
    return make_named("reduce", text, REDUCES)
