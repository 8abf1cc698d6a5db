"""The table of reduces by name."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.algebra import Reduce
from tasks.tables import Entry, make, make_own
from tasks.user_code import Code

REDUCES: Mapping[str, Entry] = {
    "mean": Entry("the mean, weighted by examples", "tasks.reduces.mean:Mean"),
    "plain_mean": Entry("the mean, in which each update counts as one", "tasks.reduces.mean:plain_mean"),
    "clipped_mean": Entry("the mean, no update longer than NORM", "tasks.reduces.mean:clipped_mean", "NORM"),
    "median": Entry("the median of each coordinate", "tasks.reduces.robust:Median"),
    "trimmed_mean": Entry("the mean without the F least and greatest", "tasks.reduces.robust:TrimmedMean", "F"),
    "krum": Entry("the update nearest to the others, F corrupted", "tasks.reduces.robust:Krum", "F[:KEEP]"),
    "bulyan": Entry("the trimmed mean of those that Krum selects", "tasks.reduces.robust:Bulyan", "F"),
    "geometric_median": Entry("the point nearest to all updates", "tasks.reduces.robust:GeometricMedian"),
    "matched": Entry("the mean, hidden units matched first", "tasks.reduces.matched:Matched"),
}


def find_reduce(named: str | Code) -> Reduce:
    """The reduce of a text such as ``median`` or ``krum:1``, or of a user's code; raises `UsageError`.

    >>> find_reduce("krum:1")
    Krum(f=1, keep=1)
    """
    reduce: Reduce = (
        make_own("reduce", named, Reduce) if isinstance(named, Code) else make("reduce", named, REDUCES)
    )
    return reduce
