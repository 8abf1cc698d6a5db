"""The table of sources: a name, and what builds the source from the text after its colon."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from storage.errors import UsageError
from tasks.data.sources.base import Each, Source
from tasks.tables import Entry, find
from tasks.user_code import Code, find_code, is_reference

SOURCES: Mapping[str, Entry] = {
    "digits": Entry("1797 handwritten digits of 8 x 8 pixels", "tasks.data.sources.digits:Digits"),
    "mnist": Entry("70,000 handwritten digits, as IDX files", "tasks.data.sources.idx:mnist", "DIR"),
    "fashion-mnist": Entry("70,000 pictures of clothes, as IDX files", "tasks.data.sources.idx:fashion", "DIR"),
    "npz": Entry("arrays inputs and targets, or x and y", "tasks.data.sources.npz:Npz", "FILE"),
    "csv": Entry("a table; the last column or `target` is learned", "tasks.data.sources.tabular:csv_file", "FILE"),
    "parquet": Entry("a table, as for csv", "tasks.data.sources.tabular:parquet_file", "FILE"),
    "text": Entry(
        "the next character, in windows of 64 or TIME", "tasks.data.sources.text:characters", "FILE[:TIME]"
    ),
}
OWN = Entry("the user's function", "tasks.data.sources.own:Own")


def find_source(
    data: str | Code | tuple[str | Code, ...], target: str | None = None, by: str | None = None
) -> Source:
    """The source that a name of the table or a user's function stands for; nothing is loaded yet.

    `target` names the column of the targets, and `by` a column that the split reads and that is no input. Raises
    `UsageError` for an unknown name, a missing or needless argument, or a target if the data have no columns.
    """
    if isinstance(data, tuple):
        return Each(tuple(find_source(one, target, by) for one in data))
    kept = keep_source(data)
    entry, given = (OWN, kept) if isinstance(kept, Code) else find("data", kept, SOURCES)
    build: Callable[..., Source] = entry.load()
    parameters = inspect.signature(build).parameters
    if target is not None and "target" not in parameters:
        name = kept.reference if isinstance(kept, Code) else kept
        raise UsageError(f"data {name} has no columns to take a target of")
    columns = {"target": target, "by": by}
    columns = {key: value for key, value in columns.items() if value is not None and key in parameters}
    return build(*([given] if given else []), **columns)


def is_source(data: str) -> bool:
    """Whether a text names a built-in source, with or without an argument after a colon."""
    return data.partition(":")[0] in SOURCES


def keep_source(data: str | Code | tuple[str | Code, ...]) -> Any:
    """A name of the table with an absolute path after it, or a user's function with its source.

    A tuple, with one for each partition, is converted element by element. Raises `UsageError`, `CodeError`.
    """
    if isinstance(data, tuple):
        return tuple(map(keep_source, data))
    if isinstance(data, Code) or (not is_source(data) and is_reference(data)):
        return find_code(data)
    _, place = find("data", data, SOURCES, "FILE.py:function")
    return f"{data.partition(':')[0]}:{Path(place).resolve()}" if place else data
