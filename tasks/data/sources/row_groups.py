"""Parquet files that together are larger than memory: their row groups are read where they are used."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from storage.errors import ColumnMissing, DataError
from storage.places.addresses import above, last_name, scheme_of
from tasks.data.datasets import Dataset
from tasks.data.examples import Examples, check_values
from tasks.data.files import File, files_below, shown
from tasks.data.grouped import Grouped
from tasks.data.sources.arrays import examples_of, reading
from tasks.data.sources.table import Source
from tasks.data.sources.tabular import parquet_file


def parquet(file: str, target: str | None = None, by: str | None = None, hash_data: bool = False) -> Source:
    """One file as a table in memory; a folder, a pattern with ``*``, or what is in a bucket by its row groups."""
    if Path(file).is_dir():
        return RowGroups(file, "*.parquet", target, by, hash_data)
    if "*" in file or scheme_of(file):
        return RowGroups(above(file), last_name(file), target, by, hash_data)
    return parquet_file(file, target, by)


@dataclass(frozen=True)
class RowGroups(Source):
    """The files of a folder that match a pattern, in the order of their names, as one table; see `Tabular`.

    Columns of numbers are inputs, float32 (row, column). A column of lists of a fixed size is an array of its own;
    if there are other inputs as well, they keep their names.
    """

    folder: str
    pattern: str
    target: str | None = None
    by: str | None = None
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """What reads the inputs; targets and the column `by` are in memory."""
        files = files_below(self.folder, self.pattern)
        tables = [_Table(file, _metadata(file)) for file in files]
        schema = tables[0].columns
        for table in tables:
            _check_alike(table, tables[0])
        for name in filter(None, (self.target, self.by)):
            if name not in schema:
                raise ColumnMissing(f"{files[0].address} has no column {name!r}; it has {', '.join(schema)}")
        others = [name for name in schema if name != self.by]
        target = self.target or (others[-1] if others else "")
        inputs = tuple(name for name in others if name != target)
        _check_inputs(tables, inputs)
        targets, names = _labels(_column(tables, target), f"{self.folder}/{self.pattern}")
        columns = {self.by: np.array(_column(tables, self.by).to_pylist())} if self.by else {}
        reader = ParquetReader(tuple(tables), inputs, targets, self.hash_data)
        return Dataset(reader, columns=columns, class_names=names)


@dataclass(frozen=True)
class _Table:
    """A Parquet file and its metadata."""

    file: File
    metadata: Any

    @functools.cached_property
    def columns(self) -> dict[str, Any]:
        """The types of the columns by name."""
        return {field.name: field.type for field in self.metadata.schema.to_arrow_schema()}

    def read(self, columns: Sequence[str], group: int | None = None) -> Any:
        """Some columns of a row group, or of all; raises `DataError` if the file is gone or another one."""
        self.file.check()
        with reading(self.file.address, "parquet"):
            opened = pq.ParquetFile(self.file.source(), metadata=self.metadata)
            return opened.read(columns) if group is None else opened.read_row_group(group, columns)


@dataclass(frozen=True, eq=False)
class ParquetReader(Grouped):
    """Reads the input columns of row groups; `targets` (row,) are those of all rows."""

    tables: tuple[_Table, ...]
    inputs: tuple[str, ...]
    known: torch.Tensor
    hash_data: bool

    @property
    def targets(self) -> torch.Tensor:
        """The targets (row,), which were read when the files were opened."""
        return self.known

    @functools.cached_property
    def files(self) -> dict[str, str]:
        """What shows that the files are the same, by name."""
        return shown([table.file for table in self.tables], self.hash_data)

    @functools.cached_property
    def starts(self) -> np.ndarray:  # type: ignore[override]
        """The first row of each row group, and the number of rows."""
        return np.cumsum([0, *(table.metadata.row_group(group).num_rows for table, group in self._places)])

    @functools.cached_property
    def _places(self) -> list[tuple[_Table, int]]:
        """The file of each row group, and its number there."""
        return [(table, group) for table in self.tables for group in range(table.metadata.num_row_groups)]

    def group(self, number: int) -> Examples:
        """Read a row group; raises `DataError` for missing values."""
        table, group = self._places[number]
        found = table.read(self.inputs, group)
        arrays = {name: _array(found.column(name), name, table.file) for name in self.inputs}
        targets = self.known[self.starts[number] : self.starts[number + 1]]
        if all(array.ndim == 1 for array in arrays.values()):
            joined = np.empty((found.num_rows, len(arrays)), np.float32)
            for place, array in enumerate(arrays.values()):
                joined[:, place] = array
            return Examples(torch.from_numpy(joined), targets)
        return examples_of(arrays if len(arrays) > 1 else next(iter(arrays.values())), targets, table.file.name)


def _metadata(file: File) -> Any:
    with reading(file.address, "parquet"):
        return pq.ParquetFile(file.source()).metadata


def _check_alike(table: _Table, first: _Table) -> None:
    """Raise `DataError` if a file has other columns than the first one, or columns of other types."""
    differing = sorted(set(map(str, table.columns.items())) ^ set(map(str, first.columns.items())))
    if differing:
        raise DataError(
            f"{table.file.address} has other columns than {first.file.name}: "
            f"{', '.join(differing[:3])} are not in both; make them alike"
        )


def _check_inputs(tables: Sequence[_Table], inputs: Sequence[str]) -> None:
    """Raise `DataError` if there are no rows or inputs, or inputs are no numbers."""
    file, rows = tables[0].file, sum(table.metadata.num_rows for table in tables)
    if not rows or not inputs:
        raise DataError(f"{file.address} and those like it have {rows} rows and {len(inputs)} columns of inputs")
    for name in inputs:
        kind = tables[0].columns[name]
        while pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise DataError(
                f"{file.address}: column {name!r} holds {kind}, and inputs are numbers or lists of a fixed size; "
                "code it as numbers or leave it out"
            )


def _column(tables: Sequence[_Table], name: str) -> Any:
    """A whole column of all files; raises `DataError` for missing values."""
    columns = [table.read([name]).column(name) for table in tables]
    for table, column in zip(tables, columns, strict=True):
        _check_whole(column, name, table.file)
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


def _check_whole(column: Any, name: str, file: File) -> None:
    if column.null_count:
        raise DataError(f"{file.address}: {column.null_count} values of column {name!r} are missing; fill them")


def _labels(column: Any, where: str) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Targets (row,), int64 labels for whole numbers and texts, else float64; and the texts in label order."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        values = column.to_numpy()
        targets = torch.from_numpy(values.astype(np.float64 if values.dtype.kind == "f" else np.int64))
        check_values(Examples(torch.empty(0), targets), where)
        return targets, ()
    coded = column.dictionary_encode().combine_chunks()
    names = np.array([str(value) for value in coded.dictionary.to_pylist()])
    order = np.argsort(names)
    return torch.from_numpy(np.argsort(order)[coded.indices.to_numpy()]), tuple(names[order].tolist())


def _array(column: Any, name: str, file: File) -> np.ndarray:
    """The values of a column, (row,) or, of lists, (row, *); raises `DataError` where some are missing."""
    _check_whole(column, name, file)
    if not pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.to_numpy())
    values, shape = column.combine_chunks(), [-1]
    while pa.types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        values = values.flatten()
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)
