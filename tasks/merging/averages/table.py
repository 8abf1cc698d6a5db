"""The table of averages by name."""

from __future__ import annotations

from roundweave.tasks.own_code.tables import Entry, Table

AVERAGES: Table = {
    "mean": Entry("the weighted mean", ".merging.averages.interpolations:LinearMean"),
    "slerp": Entry("the point of the arc between two networks", ".merging.averages.interpolations:Slerp"),
    "task_arithmetic": Entry(
        "the base and the weighted sum of what changed", ".merging.averages.task_vectors:TaskArithmetic"
    ),
    "ties": Entry("the largest changes, without those of the other sign", ".merging.averages.task_vectors:Ties"),
    "dare_linear": Entry("the sum of changes thinned at random", ".merging.averages.task_vectors:DareLinear"),
    "dare_ties": Entry(
        "changes thinned at random, without those of the other sign", ".merging.averages.task_vectors:DareTies"
    ),
}
