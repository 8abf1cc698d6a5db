"""Tables in .csv and .parquet files, with a row for each example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from storage.errors import ColumnMissing, DataError
from tasks.data.datasets import Dataset
from tasks.data.examples import check_values
from tasks.data.sources.arrays import check_memory, examples_of, reading
from tasks.data.sources.table import Source

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
        for name in filter(None, (self.target, self.by)):
            if name not in table.columns:
                raise ColumnMissing(f"{self.file} has no column {name!r}; it has {', '.join(table.columns)}")
        others = [name for name in table.columns if name != self.by]
        target = self.target or (others[-1] if others else "")
        inputs = table[[name for name in others if name != target]]
        self._check(table, inputs)
        targets, names = coded_targets(table[target])
        examples = examples_of(inputs.to_numpy(np.float32), targets, self.file)
        check_values(examples, self.file)
        columns = {self.by: np.array(table[self.by].tolist())} if self.by else {}
        return Dataset(examples, columns=columns, class_names=names)

    def _check(self, table: pd.DataFrame, inputs: pd.DataFrame) -> None:
        """Raise `DataError` for an empty table, inputs that are no numbers, or missing values."""
        if table.empty or inputs.empty:
            raise DataError(f"{self.file} has {len(table)} rows and {len(inputs.columns)} columns of inputs")
        texts = [name for name in inputs.columns if not _numeric(inputs[name])]
        if texts:
            raise DataError(
                f"{self.file}: column {texts[0]!r} holds {inputs[texts[0]].dtype}, and inputs are numbers; "
                "code it as numbers or leave it out"
            )
        missing = np.argwhere(table.isna().to_numpy())
        if len(missing):
            row, column = missing[0]
            raise DataError(
                f"{self.file}: {len(missing)} values are missing, the first in row {row + 1} "
                f"(the header is none), column {table.columns[column]!r}; fill them or remove the rows"
            )


csv_file = partial(Tabular, "csv")
parquet_file = partial(Tabular, "parquet")


def _read(format: str, file: str) -> pd.DataFrame:
    import pandas as pd

    with reading(file, format):
        if format == "csv":
            return pd.read_csv(file)
        from pyarrow.parquet import read_metadata

        # The file's size says little about the memory needed, as repeated values take no room in it.
        metadata = read_metadata(file)
        check_memory(file, metadata.num_rows * metadata.num_columns * np.dtype(np.float64).itemsize)
        return pd.read_parquet(file)


def _numeric(column: pd.Series) -> bool:
    return column.dtype.kind in "biuf"


def coded_targets(column: pd.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    """Targets (rows,), int64 labels for whole numbers and texts, else float64; and the texts in label order."""
    if _numeric(column):
        return column.to_numpy(np.float64 if column.dtype.kind == "f" else np.int64), ()
    labels, names = column.astype(str).factorize(sort=True)
    return labels.astype(np.int64), tuple(map(str, names))
