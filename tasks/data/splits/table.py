"""The table of splits: a name, and what builds the split from the text after its colon."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.tables import Entry, find

if TYPE_CHECKING:
    from tasks.data.splits.deals import Deal

SPLITS: Mapping[str, Entry] = {
    "iid": Entry("dealt out at random", "tasks.data.splits.deals:Iid"),
    "contiguous": Entry("in the order of the data", "tasks.data.splits.deals:Contiguous"),
    "dirichlet": Entry(
        "partitions of one size, each with labels in proportions of its own (Hsu et al. 2019)",
        "tasks.data.splits.deals:dirichlet",
        "ALPHA",
    ),
    "dirichlet_by_class": Entry(
        "each class dealt over the partitions, of unequal sizes (Yurochkin et al. 2019)",
        "tasks.data.splits.deals:dirichlet_by_class",
        "ALPHA",
    ),
    "shards": Entry("sorted by label, so many runs to each", "tasks.data.splits.deals:shards", "SHARDS"),
    "sizes": Entry("sizes by a power law: `power`, or its exponent", "tasks.data.splits.deals:sizes", "EXPONENT"),
    "proportions": Entry("sizes in proportions such as `3,1,1`", "tasks.data.splits.deals:proportions", "NUMBERS"),
    "by": Entry("one partition for each value of a column", "tasks.data.splits.deals:By", "COLUMN"),
    "largest": Entry("the values of a column with the most examples", "tasks.data.splits.deals:Largest", "COLUMN"),
}


@functools.cache
def find_split(text: str) -> Deal:
    """The deal that a ``name`` or ``name:argument`` stands for; raises `UsageError` for any other text."""
    entry, argument = find("split", text, SPLITS)
    deal: Deal = entry.load()(*([argument] if argument else []))
    return deal
