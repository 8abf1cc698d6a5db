"""Tables in .csv and .parquet files: a row is an example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from storage.errors import ColumnMissing, DataError, FileMissing, reason
from tasks.data.examples import Dataset, check_values
from tasks.data.sources.arrays import check_memory, examples_of
from tasks.data.sources.base import Source

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Tabular(Source):
    """A table: numeric columns are inputs, `target` (default: the last) the targets, `by` only splits the rows.

    Targets of whole numbers are labels; texts become labels in their sorted order. Inputs that are no numbers,
    and rows without a value, are refused.
    """

    format: Literal["csv", "parquet"]
    file: str
    target: str | None = None
    by: str | None = None

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Inputs float32 (rows, columns), targets int64 or float64 (rows,), in the order of the file."""
        table = _read(self.format, self.file)
        others = [name for name in table.columns if name != self.by]
        target = self.target or (others[-1] if others else "")
        self._check(table, target)
        inputs = table[[name for name in others if name != target]].to_numpy(np.float32)
        targets, names = _targets(table[target])
        examples = examples_of(inputs, targets, self.file)
        check_values(examples, self.file)
        columns = {self.by: np.array(table[self.by].tolist())} if self.by else {}
        return Dataset(examples, columns=columns, class_names=names)

    def _check(self, table: pd.DataFrame, target: str) -> None:
        """Raise `DataError` for what cannot be learned from."""
        for name in filter(None, (self.target, self.by)):
            if name not in table.columns:
                raise ColumnMissing(f"{self.file} has no column {name!r}; it has {', '.join(table.columns)}")
        inputs = table.drop(columns=[name for name in (target, self.by) if name in table.columns])
        if table.empty or inputs.empty:
            raise DataError(f"{self.file} has {len(table)} rows and {len(inputs.columns)} columns of inputs")
        texts = [name for name in inputs.columns if not _numeric(inputs[name])]
        if texts:
            raise DataError(
                f"{self.file}: column {texts[0]!r} holds {inputs[texts[0]].dtype}, and inputs are numbers; "
                "code it as numbers or leave it out"
            )
        _check_values_given(table, self.file)


csv_file = partial(Tabular, "csv")
parquet_file = partial(Tabular, "parquet")


def _read(format: str, file: str) -> pd.DataFrame:
    import pandas as pd

    try:
        if format == "csv":
            return pd.read_csv(file)
        check_memory(file, _cells(file) * np.dtype(np.float64).itemsize)
        return pd.read_parquet(file)
    except DataError:
        raise
    except FileNotFoundError as error:
        raise FileMissing(f"there is no file {file}; --data {format}:FILE names one") from error
    except (OSError, ValueError, ImportError, NotImplementedError) as error:
        raise DataError(f"{file} cannot be read as {format}: {reason(error)}") from error


def _cells(file: str) -> int:
    """How many values a .parquet file says it has; a value that repeats takes no room in it."""
    from pyarrow.parquet import read_metadata

    metadata = read_metadata(file)
    return int(metadata.num_rows) * int(metadata.num_columns)


def _numeric(column: pd.Series) -> bool:
    from pandas.api import types

    return types.is_numeric_dtype(column) and not types.is_complex_dtype(column)


def _check_values_given(table: pd.DataFrame, file: str) -> None:
    missing = np.argwhere(table.isna().to_numpy())
    if len(missing):
        row, column = missing[0]
        raise DataError(
            f"{file}: {len(missing)} values are missing, the first in row {row + 1} (the header is none), "
            f"column {table.columns[column]!r}; fill them or remove the rows"
        )


def _targets(column: pd.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels int64 of whole numbers and of texts, else float64 (rows,); and the texts in label order."""
    from pandas.api import types

    if _numeric(column):
        return column.to_numpy(np.float64 if types.is_float_dtype(column) else np.int64), ()
    names, labels = np.unique(np.array([str(value) for value in column]), return_inverse=True)
    return labels.astype(np.int64), tuple(names.tolist())
