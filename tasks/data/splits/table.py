"""The table of splits: a name, and what builds the split from the text after its colon."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.tables import Entry, find

if TYPE_CHECKING:
    from tasks.data.splits.base import Deal

SPLITS: Mapping[str, Entry] = {
    "iid": Entry("dealt out at random", "tasks.data.splits.even:Iid"),
    "contiguous": Entry("in the order of the data", "tasks.data.splits.even:Contiguous"),
}


@functools.cache
def find_split(text: str) -> Deal:
    """The way to split that a ``name`` or ``name:argument`` stands for; raises `UsageError` for any other."""
    entry, argument = find("split", text, SPLITS)
    deal: Deal = entry.load()(*([argument] if argument else []))
    return deal
