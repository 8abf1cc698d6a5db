"""Parquet files that together are larger than memory: their row groups are read where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from storage.errors import ColumnMissing, DataError
from storage.places.addresses import above, last_name, scheme_of
from storage.places.objects import client_of
from tasks.data.datasets import Dataset
from tasks.data.examples import Examples, check_values
from tasks.data.sources.arrays import examples_of, reading
from tasks.data.sources.table import Source
from tasks.data.sources.tabular import coded_targets, parquet_file
from tasks.data.stored_files import File, FileReader, by_groups, files_below


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

    Columns of numbers are inputs, float32 (row, column). Lists of a fixed size are arrays; of several such inputs
    each keeps its name.
    """

    folder: str
    pattern: str
    target: str | None = None
    by: str | None = None
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """What reads the inputs; targets and the column `by` are in memory. Raises `DataError`."""
        files = files_below(self.folder, self.pattern)
        parts = [(file, _metadata(file)) for file in files]
        schema = _schema(parts)
        for name in filter(None, (self.target, self.by)):
            if name not in schema:
                raise ColumnMissing(f"{files[0].address} has no column {name!r}; it has {', '.join(schema)}")
        others = [name for name in schema if name != self.by]
        target = self.target or (others[-1] if others else "")
        inputs = [name for name in others if name != target]
        places = [(file, metadata, group) for file, metadata in parts for group in range(metadata.num_row_groups)]
        starts = np.cumsum([0, *(metadata.row_group(group).num_rows for _, metadata, group in places)])
        _check_inputs(files[0], {name: schema[name] for name in inputs}, int(starts[-1]))
        known, names = coded_targets(_column(parts, target).to_pandas())
        targets = torch.from_numpy(np.array(known))
        check_values(Examples(torch.empty(0), targets), files[0].address)

        def group(number: int) -> Examples:
            table = _read(*places[number], columns=inputs)
            where = places[number][0].address
            arrays = {name: _array(table.column(name), f"{where}: column {name!r}") for name in inputs}
            return _examples(arrays, targets[slice(*starts[number : number + 2])], where)

        reader = FileReader(found=files, hash_data=self.hash_data, targets=targets, **by_groups(starts, group))
        columns = {self.by: np.array(_column(parts, self.by).to_pylist())} if self.by else {}
        return Dataset(reader, columns=columns, class_names=names)


def _opened(file: File, metadata: Any = None) -> Any:
    """A Parquet file, of which the metadata may be known."""
    if scheme_of(file.address):
        reader = obstore.open_reader(*client_of(file.address))
        # What pyarrow asks of a file, of which this reader lacks `closed`.
        named = {"read": reader.read, "seek": reader.seek, "tell": reader.tell, "close": reader.close}
        return pq.ParquetFile(SimpleNamespace(closed=False, **named), metadata=metadata)
    return pq.ParquetFile(file.address, metadata=metadata)


def _metadata(file: File) -> Any:
    with reading(file.address, "parquet"):
        return _opened(file).metadata


def _read(file: File, metadata: Any, group: int | None, columns: Sequence[str]) -> Any:
    """Some columns of a row group, or of all; raises `DataError` if the file is gone or another one."""
    file.check()
    with reading(file.address, "parquet"):
        opened = _opened(file, metadata)
        return opened.read(columns) if group is None else opened.read_row_group(group, columns)


def _schema(parts: Sequence[tuple[File, Any]]) -> dict[str, Any]:
    """The types of the columns by name; raises `DataError` if one of the files has others."""
    (first, _), *_ = parts
    schemas = [{field.name: field.type for field in metadata.schema.to_arrow_schema()} for _, metadata in parts]
    for (file, _), schema in zip(parts, schemas, strict=True):
        if other := [name for name in {**schemas[0], **schema} if schema.get(name) != schemas[0].get(name)]:
            found, wanted = (one.get(other[0], "nothing") for one in (schema, schemas[0]))
            raise DataError(
                f"{file.address} has {found} in column {other[0]!r}, and {first.name} {wanted}; make them alike"
            )
    return schemas[0]


def _check_inputs(file: File, inputs: dict[str, Any], rows: int) -> None:
    """Raise `DataError` if there are no rows or inputs, or inputs that are no numbers."""
    if not rows or not inputs:
        raise DataError(f"{file.address} and those like it have {rows} rows and {len(inputs)} columns of inputs")
    for name, kind in inputs.items():
        inner = kind
        while pa.types.is_fixed_size_list(inner):
            inner = inner.value_type
        if not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)):
            raise DataError(
                f"{file.address}: column {name!r} holds {kind}, and inputs are numbers or lists of a fixed size; "
                "code it or leave it out"
            )


def _column(parts: Sequence[tuple[File, Any]], name: str) -> Any:
    """A whole column of all files; raises `DataError` for missing values."""
    columns = [
        _whole(_read(*part, None, [name]).column(name), f"{part[0].address}: column {name!r}") for part in parts
    ]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


def _whole(column: Any, where: str) -> Any:
    if column.null_count:
        raise DataError(f"{where} lacks {column.null_count} values; fill them or remove the rows")
    return column


def _array(column: Any, where: str) -> np.ndarray:
    """The values of a column, (row,) or, of lists, (row, *); raises `DataError` where some are missing."""
    values, shape = _whole(column, where).combine_chunks(), [-1]
    while pa.types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        values = _whole(values.flatten(), where)
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)


def _examples(arrays: dict[str, np.ndarray], targets: torch.Tensor, where: str) -> Examples:
    """The examples of the columns of a row group."""
    if len(arrays) == 1 or any(array.ndim > 1 for array in arrays.values()):
        return examples_of(arrays if len(arrays) > 1 else next(iter(arrays.values())), targets, where)
    joined = np.empty((len(targets), len(arrays)), np.float32)
    for place, array in enumerate(arrays.values()):
        joined[:, place] = array
    return Examples(torch.from_numpy(joined), targets)
