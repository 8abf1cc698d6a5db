"""The table of reduces by name."""

from __future__ import annotations

from collections.abc import Mapping

from roundweave.tasks.algorithms.algebra import Reduce
from roundweave.tasks.own_code.tables import Entry, make

REDUCES: Mapping[str, Entry] = {
    "mean": Entry("the mean, weighted by examples", ".algorithms.reduces.mean:Mean"),
    "plain_mean": Entry("the mean, in which each update counts as one", ".algorithms.reduces.mean:plain_mean"),
    "clipped_mean": Entry("the mean, no update longer than NORM", ".algorithms.reduces.mean:ClippedMean", "NORM"),
    "median": Entry("the median of each coordinate", ".algorithms.reduces.robust:Median"),
    "trimmed_mean": Entry("the mean without F least and greatest", ".algorithms.reduces.robust:TrimmedMean", "F"),
    "krum": Entry("the update nearest to the others, F corrupted", ".algorithms.reduces.robust:Krum", "F[:KEEP]"),
    "bulyan": Entry("the trimmed mean of those that Krum selects", ".algorithms.reduces.robust:Bulyan", "F"),
    "geometric_median": Entry("the point nearest to all updates", ".algorithms.reduces.robust:GeometricMedian"),
    "regmean": Entry("the mean, each layer solved on partitions' inputs", ".algorithms.reduces.regmean:RegMean"),
    "matched": Entry("the mean, hidden units matched first", ".algorithms.reduces.matched:Matched"),
}


def find_reduce(named: str) -> Reduce:
    """The reduce of a text such as ``median`` or ``krum:1``; raises `UsageError`.

    >>> find_reduce("krum:1")
    Krum(f=1, keep=1)
    """
    reduce: Reduce = make("reduce", named, REDUCES)
    return reduce
