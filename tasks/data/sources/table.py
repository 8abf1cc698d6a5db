"""Sources of examples: their interface, and the table of built-in names."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from roundweave.storage.errors import DataError, UsageError
from roundweave.storage.places.base import full_address
from roundweave.tasks.own_code.code import Code, find_code, is_reference
from roundweave.tasks.own_code.tables import Entry, find

if TYPE_CHECKING:
    from roundweave.tasks.data.datasets import Dataset
    from roundweave.tasks.data.meaning import Meaning
    from roundweave.tasks.data.sources.encoding import Encode


class Source(Protocol):
    """A source of examples: a small value that is sent to workers, which load the examples that they need.

    A process loads equal sources only once. `find_source` returns a source by its name.

    Example:
        >>> source = rw.find_source("digits")
    """

    @property
    def partitioned(self) -> bool:
        """Whether each partition is loaded on its own, because all together may not fit on one machine."""
        return False

    def load(self, partition: int, partitions: int) -> Dataset:
        """Load one partition if the source is `partitioned`, else everything. Raises `DataError`."""
        ...

    def again(self, partition: int, partitions: int) -> Dataset | None:
        """Read the first examples once more if a user's code gives them. None for other sources."""
        return None

    def arranged(self, meaning: Meaning) -> Source:
        """Return the source with columns and labels in the order of their names in `meaning`."""
        return Arranged(self, meaning)


@dataclass(frozen=True)
class Arranged(Source):
    """A source with columns and labels in the order of their names in `meaning`."""

    source: Source
    meaning: Meaning

    def __str__(self) -> str:
        return str(self.source)

    @property
    def partitioned(self) -> bool:
        return self.source.partitioned

    def load(self, partition: int, partitions: int) -> Dataset:
        """Load what the source loads, in that order."""
        return self.source.load(partition, partitions).arranged(self.meaning)

    def again(self, partition: int, partitions: int) -> Dataset | None:
        again = self.source.again(partition, partitions)
        return again and again.arranged(self.meaning)

    def arranged(self, meaning: Meaning) -> Source:
        return self.source.arranged(meaning)


@dataclass(frozen=True)
class Each(Source):
    """A separate source for each partition, with or without a name. Each loads all of its examples at once."""

    sources: tuple[Source, ...]
    names: tuple[str, ...] = ()

    partitioned = True

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(map(str, self.sources)))

    def load(self, partition: int, partitions: int) -> Dataset:
        """Load the source of a partition. Raises `DataError` if there are not as many sources as partitions."""
        if partitions != len(self.sources):
            raise DataError(f"{len(self.sources)} data sets make as many partitions, not {partitions}")
        return self.sources[partition].load(0, 1)

    def again(self, partition: int, partitions: int) -> Dataset | None:
        return self.sources[partition].again(0, 1)

    def arranged(self, meaning: Meaning) -> Source:
        return replace(self, sources=tuple(source.arranged(meaning) for source in self.sources))


SOURCES: Mapping[str, Entry] = {
    "digits": Entry("1797 handwritten digits of 8 x 8 pixels", ".data.sources.images:Digits"),
    "mnist": Entry("70,000 handwritten digits, as IDX files", ".data.sources.images:mnist", "DIR"),
    "fashion-mnist": Entry("70,000 pictures of clothes, as IDX files", ".data.sources.images:fashion", "DIR"),
    "npz": Entry("arrays inputs and targets, or x and y", ".data.sources.arrays:Npz", "FILE"),
    "csv": Entry("a table; predicts `target` or the last column", ".data.sources.tabular:csv_file", "FILE"),
    "parquet": Entry("like csv; DIR/*.parquet is read in parts", ".data.sources.tabular:parquet", "FILE"),
    "npy": Entry("an array; targets.npy beside it, or `target`", ".data.sources.arrays:Npy", "FILE"),
    "zarr": Entry("arrays inputs and targets of a zarr group", ".data.sources.arrays:Zarr", "URL"),
    "text": Entry("predicts characters, in windows of 64 or TIME", ".data.sources.text:characters", "FILE[:TIME]"),
}
OWN_SOURCE = Entry("the user's function", ".data.sources.own:Own")


Data = str | Code | tuple[str | Code, ...]
"""A name such as ``digits``, ``csv:FILE`` or ``FILE.py:function``, a user's function, or one per partition."""


def find_source(
    data: Data,
    target: str | None = None,
    by: str | None = None,
    hash_data: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
    columns: tuple[str, ...] | None = None,
    encode: Encode | None = None,
) -> Source:
    """Return the source of examples behind a name, a file or a function. Nothing is loaded yet.

    Args:
        data: A name such as ``digits``, ``csv:FILE`` or ``FILE.py:function``, a function, or one per partition.
        target: The column of the targets, if the data have columns. For ``npy:FILE``, the file of the targets.
        by: A column that the split reads. It is no input.
        hash_data: Whether all bytes of files larger than 256 MB are read, to show that the files are unchanged.
        options: Keyword arguments of the user's function, as JSON has them.
        columns: The columns of a table that are inputs; by default all other columns.
        encode: How texts in input columns become numbers: ``one-hot`` or ``ordinal``.

    Returns:
        The source: a small value from which every worker loads the examples that it needs.

    Raises:
        UsageError: The name is unknown, an argument is missing or needless, or the data have no such columns.

    Example:
        >>> digits = rw.find_source("digits")
    """
    if isinstance(data, tuple):
        names = tuple(each.name if isinstance(each, Code) else PurePath(each).stem for each in keep_source(data))
        distinct = names if len({*names}) == len(names) else ()
        how = (target, by, hash_data, options, columns, encode)
        return Each(tuple(find_source(one, *how) for one in data), distinct)
    kept = keep_source(data)
    entry, given = (OWN_SOURCE, kept) if isinstance(kept, Code) else find("data", kept, SOURCES)
    build: Callable[..., Source] = entry.load()
    parameters = inspect.signature(build).parameters
    of_tables = {"target": target, "columns": columns, "encode": encode}
    if refused := [each for each, value in of_tables.items() if value is not None and each not in parameters]:
        name = kept.reference if isinstance(kept, Code) else kept
        raise UsageError(f"data {name} is no table; leave {', '.join(refused)} out")
    if options and not isinstance(kept, Code):
        raise UsageError(f"data {kept} takes no options; data_options are for a function of yours")
    own = json.dumps(dict(options), sort_keys=True) if options else None
    taken = {**of_tables, "by": by, "hash_data": hash_data or None, "options": own}
    taken = {key: value for key, value in taken.items() if value is not None and key in parameters}
    return build(*([given] if given else []), **taken)


def is_source(data: str) -> bool:
    """Tell whether a text names a built-in source, with or without an argument after a colon."""
    return data.partition(":")[0] in SOURCES


def named_source(text: str) -> str:
    """Return a file by its suffix, ``csv:t.csv`` for ``t.csv``; any other text unchanged."""
    kind = PurePath(text).suffix[1:]
    return f"{kind}:{text}" if kind in SOURCES and ":" not in text else text


def keep_source(data: Data) -> Any:
    """Return a name of the table with an absolute path after it, or a user's function with its source.

    A tuple, with one entry per partition, is converted entry by entry. Raises `UsageError` and `CodeError`.
    """
    if isinstance(data, tuple):
        return tuple(map(keep_source, data))
    if not isinstance(data, str) or (not is_source(data) and is_reference(data)):
        return find_code(data)
    data = named_source(data)
    _, place = find("data", data, SOURCES, "FILE.py:function")
    return f"{data.partition(':')[0]}:{full_address(place)}" if place else data
