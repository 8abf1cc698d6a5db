"""The table of averages by name."""

from __future__ import annotations

from roundweave.tasks.own_code.tables import Entry, Table

AVERAGES: Table = {
    "mean": Entry("the weighted mean", ".merging.averages.interpolations:LinearMean"),
    "slerp": Entry("spherical interpolation between two networks", ".merging.averages.interpolations:Slerp"),
    "task_arithmetic": Entry(
        "the base plus the weighted sum of the changes", ".merging.averages.task_vectors:TaskArithmetic"
    ),
    "ties": Entry("the largest changes whose signs agree", ".merging.averages.task_vectors:Ties"),
    "dare_linear": Entry("the sum of changes after random dropping", ".merging.averages.task_vectors:DareLinear"),
    "dare_ties": Entry(
        "changes after random dropping whose signs agree", ".merging.averages.task_vectors:DareTies"
    ),
}
