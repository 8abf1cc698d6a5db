"""The table of reduces by name."""

from __future__ import annotations

from collections.abc import Mapping

from roundweave.tasks.algorithms.algebra import Reduce
from roundweave.tasks.own_code.tables import Entry, make

REDUCES: Mapping[str, Entry] = {
    "mean": Entry("the mean, weighted by examples", ".algorithms.reduces.mean:Mean"),
    "plain_mean": Entry("the unweighted mean of the updates", ".algorithms.reduces.mean:plain_mean"),
    "clipped_mean": Entry("the mean of updates clipped to NORM", ".algorithms.reduces.mean:ClippedMean", "NORM"),
    "median": Entry("the median of each coordinate", ".algorithms.reduces.robust:Median"),
    "trimmed_mean": Entry("the mean without the F extreme values", ".algorithms.reduces.robust:TrimmedMean", "F"),
    "krum": Entry("the update nearest to others, with F attackers", ".algorithms.reduces.robust:Krum", "F[:KEEP]"),
    "bulyan": Entry("the trimmed mean of updates that Krum selects", ".algorithms.reduces.robust:Bulyan", "F"),
    "geometric_median": Entry("the point nearest to all updates", ".algorithms.reduces.robust:GeometricMedian"),
    "regmean": Entry("the mean, layers solved by Gram matrices", ".algorithms.reduces.regmean:RegMean"),
    "matched": Entry("the mean after hidden units are matched", ".algorithms.reduces.matched:Matched"),
}


def find_reduce(named: str) -> Reduce:
    """Return the reduce that a text such as ``median`` or ``krum:1`` names. Raises `UsageError`.

    >>> find_reduce("krum:1")
    Krum(f=1, keep=1)
    """
    reduce: Reduce = make("reduce", named, REDUCES)
    return reduce
