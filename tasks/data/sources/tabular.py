"""Tables with a row for each example: .csv and .parquet files in memory, and Parquet files larger than that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from roundweave.storage.errors import ColumnMissing, DataError
from roundweave.storage.places.base import above, last_name, scheme_of
from roundweave.tasks.data.collating import examples_of, floats, joined
from roundweave.tasks.data.datasets import Dataset
from roundweave.tasks.data.examples import Examples, check_values
from roundweave.tasks.data.meaning import Meaning
from roundweave.tasks.data.sources.arrays import check_memory, reading
from roundweave.tasks.data.sources.encoding import Encode, coded, encoded
from roundweave.tasks.data.sources.table import Arranged, Source
from roundweave.tasks.data.stored_files import File, FileReader, files_below


@dataclass(frozen=True, kw_only=True)
class Table(Source):
    """A table: `columns` (default: all) are inputs, `target` (default: the last) targets, `by` splits rows.

    Targets of whole numbers are labels. Texts become labels in their sorted order. `encode` makes numbers of texts
    in inputs. Texts of the `known` names keep their places. Rows with a missing value are refused.
    """

    target: str | None = None
    by: str | None = None
    columns: tuple[str, ...] = ()
    encode: Encode | None = None
    known: tuple[str, ...] = ()

    def arranged(self, meaning: Meaning) -> Source:
        """The table with columns and labels in the order of their names, and with the texts that these have."""
        return Arranged(replace(self, known=meaning.input_names), meaning)


@dataclass(frozen=True)
class Tabular(Table):
    """A file whose table is held in memory."""

    format: Literal["csv", "parquet"]
    file: str

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Inputs float64 or float32 (rows, columns), targets int64 or float64 (rows,), in the file's order."""
        table = _read(self.format, self.file)
        if unnamed := [number for number, name in enumerate(table, 1) if str(name).startswith("Unnamed: ")]:
            # So pandas writes its index to a .csv file, of which nothing can be learned.
            raise DataError(f"{self.file}: column {unnamed[0]} has no name; give it one, or leave it out")
        inputs, target = _roles(dict(table.dtypes), len(table), self, self.file, lambda kind: kind.kind in "biuf")
        missing = np.argwhere(table.isna().to_numpy())
        if len(missing):
            row, column = missing[0]
            first = f"in row {row + 1} (the header is none), column {table.columns[column]!r}"
            gaps = f"{len(missing)} values are missing, the first {first}"
            text = " (so are texts such as NA, None and null; call them otherwise)" if self.format == "csv" else ""
            raise DataError(f"{self.file}: {gaps}{text}; fill them or remove the rows")
        targets, names = coded(table[target], self.file)
        numbers = _numbers({name: table[name] for name in inputs}, self, self.file)
        values = np.stack([*numbers.values()], axis=1)
        examples = examples_of(values, targets, self.file)
        check_values(examples, self.file)
        columns = {self.by: np.array(table[self.by].tolist())} if self.by else {}
        return Dataset(examples, columns=columns, class_names=names, input_names=tuple(numbers))


csv_file = partial(Tabular, "csv")


def parquet(
    file: str,
    hash_data: bool = False,
    *,
    target: str | None = None,
    by: str | None = None,
    columns: tuple[str, ...] = (),
    encode: Encode | None = None,
) -> Source:
    """Return one file as a table in memory; a folder, a pattern with ``*``, or a bucket by its row groups."""
    roles: dict[str, Any] = {"target": target, "by": by, "columns": columns, "encode": encode}
    if Path(file).is_dir():
        return RowGroups(file, "*.parquet", hash_data, **roles)
    if "*" in file or scheme_of(file):
        return RowGroups(above(file), last_name(file), hash_data, **roles)
    return Tabular("parquet", file, **roles)


@dataclass(frozen=True)
class RowGroups(Table):
    """The files of a folder that match a pattern, in the order of their names, as one table.

    Lists of a fixed size are arrays as well. Inputs are those of `joined`, read a row group at a time.
    """

    folder: str
    pattern: str
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Return the reader of the inputs. Targets and the column `by` are in memory. Raises `DataError`."""
        files = files_below(self.folder, self.pattern)
        parts = [(file, _opened(file).metadata) for file in files]
        places = [(file, metadata, group) for file, metadata in parts for group in range(metadata.num_row_groups)]
        starts = np.cumsum([0, *(metadata.row_group(group).num_rows for _, metadata, group in places)])
        where = f"{self.folder}/{self.pattern}"
        inputs, target = _roles(_schema(parts), int(starts[-1]), self, where, _holds_numbers)
        known, names = coded(_column(parts, target).to_pandas().rename(target), where)
        texts = [name for name in inputs if not _holds_numbers(_schema(parts)[name])]
        learned = {name: [*_numbers({name: _texts(_column(parts, name), name)}, self, where)] for name in texts}
        encoding = replace(self, known=tuple(chain.from_iterable(learned.values())))
        targets = torch.from_numpy(np.array(known))
        check_values(Examples(torch.empty(0), targets), where)

        def group(number: int) -> Examples:
            columns, where = _columns(*places[number], inputs), places[number][0].address
            arrays: dict[str, np.ndarray] = {}
            for name, column in columns.items():
                if name in learned:
                    arrays |= _numbers({name: _texts(column, name)}, encoding, where)
                else:
                    arrays[name] = _array(column, f"{where}: column {name!r}")
            return examples_of(joined(arrays), targets[slice(*starts[number : number + 2])], where)

        reader = FileReader(files, self.hash_data, where, len(targets), group, targets, starts)
        by = {self.by: np.array(_column(parts, self.by).to_pylist())} if self.by else {}
        called = chain.from_iterable(learned.get(name, [name]) for name in inputs)
        return Dataset(reader, columns=by, class_names=names, input_names=tuple(called))


def _texts(column: Any, name: str) -> pd.Series:
    series: pd.Series = column.to_pandas()
    return series.rename(name)


def _numbers(columns: Mapping[str, pd.Series], table: Table, where: str) -> dict[str, np.ndarray]:
    """Columns (row,) as numbers by name; those of texts as `encoded`."""
    numbers: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        if table.encode and column.dtype.kind not in "biuf":
            numbers |= encoded(column, table.encode, table.known, where)
        else:
            numbers[name] = floats(column, f"{where}: column {name!r}")
    return numbers


def _roles(
    kinds: Mapping[str, Any], rows: int, source: Table, where: str, numeric: Callable[[Any], bool]
) -> tuple[list[str], str]:
    """Return the columns of the inputs and that of the targets, of a table whose columns have these types by name.

    Raises `ColumnMissing`, and `DataError` if there are no rows or inputs, or inputs that are not `numeric`.
    """
    for folder, equals, _ in (part.partition("=") for part in Path(where).parts[:-1]):
        if equals and folder not in kinds:
            raise DataError(
                f"{where}: column {folder} is in the folder's name alone; write it into the files, too"
            )
    for name in filter(None, (source.target, source.by, *source.columns)):
        if name not in kinds:
            raise ColumnMissing(f"{where} has no column {name!r}; it has {', '.join(kinds)}")
    others = [name for name in kinds if name != source.by]
    target = source.target or (others[-1] if others else "")
    inputs = [*source.columns] or [name for name in others if name != target]
    if taken := {*inputs} & {target, source.by}:
        raise DataError(f"{where}: column {taken.pop()!r} is the target's or the split's, no input; give a target")
    if not rows or not inputs:
        raise DataError(f"{where} has {rows} rows and {len(inputs)} columns of inputs")
    for name in inputs:
        if source.encode and "=" in name:
            raise DataError(f"{where}: column {name!r} has the name of an encoded one; rename it, without =")
        if not (numeric(kinds[name]) or source.encode):
            holds = f"column {name!r} holds {kinds[name]}, and inputs are numbers"
            raise DataError(f"{where}: {holds}; give --encode one-hot, or leave it out of --columns")
    return inputs, target


def _read(format: str, file: str) -> pd.DataFrame:
    with reading(file, format):
        if format == "csv":
            check_memory(file, Path(file).stat().st_size)
            table = pd.read_csv(file, low_memory=False)  # by chunks, 001 is 1 where a chunk has no letter
            names = [str(name) for name in table]
            if any(";" in name for name in names):
                raise DataError(f"{file}: its values are separated by ;; write commas, and points in decimals")
            numbered = names in ([str(first + n) for n in range(len(names))] for first in (0, 1))
            if not numbered and all(name.replace(".", "").lstrip("-").isdecimal() for name in names):
                raise DataError(f"{file}: its first row is of numbers; put a row of names before it")
            if not table.index.equals(pd.RangeIndex(len(table))):  # a first column without a name is an index
                raise DataError(
                    f"{file}: its rows have more values than there are names; name the first column, too"
                )
            return table
        # The file's size says little about the memory needed, as repeated values take no room in it.
        metadata = pq.read_metadata(file)
        check_memory(file, metadata.num_rows * metadata.num_columns * np.dtype(np.float64).itemsize)
        return pd.read_parquet(file)


def _opened(file: File, metadata: Any = None) -> Any:
    """Return a Parquet file, of which the metadata may be known."""
    opened: Any = file.address
    with reading(file.address, "parquet"):
        if scheme_of(file.address):
            import obstore

            from roundweave.storage.places.objects import client_of

            reader = obstore.open_reader(*client_of(file.address))
            # What pyarrow asks of a file, of which this reader lacks `closed`.
            named = {name: getattr(reader, name) for name in ("read", "seek", "tell", "close")}
            opened = SimpleNamespace(closed=False, **named)
        return pq.ParquetFile(opened, metadata=metadata)


def _columns(file: File, metadata: Any, group: int | None, names: Sequence[str]) -> dict[str, Any]:
    """Return some columns of a row group, or of all. Raises `DataError` for missing values, or a changed file."""
    file.check()
    opened = _opened(file, metadata)
    with reading(file.address, "parquet"):
        table = opened.read(names) if group is None else opened.read_row_group(group, names)
    return {name: _whole(table.column(name), f"{file.address}: column {name!r}") for name in names}


def _column(parts: Sequence[tuple[File, Any]], name: str) -> Any:
    """Return a whole column of all files."""
    columns = [_columns(*part, None, [name])[name] for part in parts]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


def _schema(parts: Sequence[tuple[File, Any]]) -> dict[str, Any]:
    """Return the types of the columns by name. Raises `DataError` if one of the files has others."""
    schemas = [_fields(metadata.schema.to_arrow_schema()) for _, metadata in parts]
    first = schemas[0]
    for (file, _), schema in zip(parts, schemas, strict=True):
        if name := next((name for name in {**first, **schema} if schema.get(name) != first.get(name)), None):
            found, wanted = (one.get(name, "nothing") for one in (schema, first))
            where = f"{file.address} has {found} in column {name!r}, and {parts[0][0].name} {wanted}"
            raise DataError(f"{where}; make them alike")
    return first


def _fields(schema: Any) -> dict[str, Any]:
    """Return the types of a schema's columns by name, without those that pandas keeps its index in."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return {field.name: field.type for field in schema if field.name not in index}


def _holds_numbers(kind: Any) -> bool:
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))


def _whole(column: Any, where: str) -> Any:
    if column.null_count:
        raise DataError(f"{where} lacks {column.null_count} values; fill them or remove the rows")
    return column


def _array(column: Any, where: str) -> np.ndarray:
    """Return the values of a column, (row,) or, of lists, (row, *). Raises `DataError` if some are missing."""
    values, shape = column.combine_chunks(), [-1]
    while pa.types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        values = _whole(values.flatten(), where)
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)
