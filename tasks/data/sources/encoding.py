"""Texts as numbers, by the encoders of scikit-learn: columns of inputs, and labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roundweave.storage.errors import DataError, cut

if TYPE_CHECKING:
    import pandas as pd

Encode = Literal["one-hot", "ordinal"]

FEW_TEXTS, MOST_TEXTS = 20, 1000
"""The most different texts of an input column, besides half of the rows. A column of names teaches nothing."""


def encoded(column: pd.Series, encode: Encode, known: Sequence[str], where: str) -> dict[str, np.ndarray]:
    """Return a column of texts (row,) as columns of float32 (row,) by name.

    ``one-hot`` gives a column ``city=Rome`` for each text. ``ordinal`` gives the number of the text in a column
    ``city=["Oslo", "Rome"]``. The texts are those of the `known` names if some belong to this column, else those
    that occur, sorted. Raises `DataError` for an unknown text, and for too many texts.
    """
    check_texts(column, where)
    from pandas import to_numeric  # slow to import
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    prefix, values = f"{column.name}=", column.astype(str)
    told = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    lists = {text for each in told for text in json.loads(each)} if encode == "ordinal" else ()
    texts = sorted(lists) or told or sorted(values.unique())
    found = f"{where}: column {column.name!r} has"
    numbers = to_numeric(values, errors="coerce")
    if 0.5 < numbers.notna().mean() < 1:
        odd = values[numbers.isna()].iloc[0]
        raise DataError(f"{found} numbers and the text {odd!r}; give numbers alone, or texts that are no numbers")
    if unknown := sorted({*values} - {*texts}):
        raise DataError(f"{found} {unknown[0]!r}, which is unknown; known are {', '.join(cut(texts))}")
    if not told and len(texts) > min(MOST_TEXTS, max(FEW_TEXTS, len(values) // 2)):
        raise DataError(f"{found} {len(texts)} different texts in {len(values)} rows; leave it out of --columns")
    kind = OrdinalEncoder if encode == "ordinal" else OneHotEncoder
    options = {} if encode == "ordinal" else {"sparse_output": False}
    coded = kind(categories=[texts], dtype=np.float32, **options).fit_transform(values.to_frame())
    names = [json.dumps(texts, ensure_ascii=False)] if encode == "ordinal" else texts
    return {f"{prefix}{name}": coded[:, place] for place, name in enumerate(names)}


def coded(column: pd.Series, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return targets (row,), int64 labels for whole numbers and texts, else float64; and the texts in label order.

    Raises `DataError` for decimals and times, whose digits would be taken for texts.
    """
    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64 if column.dtype.kind == "f" else np.int64), ()
    check_texts(column, where)
    labels, names = column.astype(str).factorize(sort=True)
    return labels.astype(np.int64), tuple(map(str, names))


def named_labels(targets: Any, where: str) -> tuple[Any, tuple[str, ...]]:
    """Return labels that are texts (example,) as numbers, and the texts in label order.

    Other targets unchanged.
    """
    listed = isinstance(targets, list | tuple | np.ndarray) or hasattr(targets, "to_numpy")
    single = listed and len(targets) and len(getattr(targets, "shape", (0,))) == 1
    if not (single and all(isinstance(each, str) for each in targets)):
        return targets, ()
    import pandas as pd  # slow to import

    return coded(pd.Series([*targets], name="of labels"), where)


def check_texts(column: pd.Series, where: str) -> None:
    """Raise `DataError` for a column of decimals or times, whose digits are no texts."""
    from pandas.api.types import infer_dtype  # slow to import

    if (held := infer_dtype(column)) == "decimal" or column.dtype.kind in "mM":
        raise DataError(f"{where}: column {column.name!r} holds {held}s; code them as whole numbers or floats")
