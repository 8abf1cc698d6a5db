"""Writers of data sets: each writes inputs (example, number) and labels (example,), and gives their name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import zarr


def npz(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> str:
    np.savez(folder / "a.npz", x=inputs, y=labels)
    return f"npz:{folder}/a.npz"


def npy(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> str:
    np.save(folder / "a.npy", inputs), np.save(folder / "targets.npy", labels)
    return f"npy:{folder}/a.npy"


def table(inputs: np.ndarray, labels: np.ndarray) -> pd.DataFrame:
    """Columns a, b, ... and the label."""
    return pd.DataFrame(inputs, columns=list("abcdef"[: inputs.shape[1]])).assign(label=labels)


def csv(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> str:
    table(inputs, labels).to_csv(folder / "a.csv", index=False)
    return f"csv:{folder}/a.csv"


def parquet(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> str:
    table(inputs, labels).to_parquet(folder / "a.parquet", index=False, row_group_size=40)
    return f"parquet:{folder}/a.parquet"


def parquet_files(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> str:
    """Two files with row groups of at most 16 rows."""
    for name, rows in (("a", slice(0, 40)), ("b", slice(40, None))):
        part = table(inputs[rows], labels[rows])
        part.to_parquet(folder / f"{name}.parquet", index=False, row_group_size=16)
    return f"parquet:{folder}/*.parquet"


def zarr_group(folder: Path, inputs: np.ndarray, labels: np.ndarray, **how: Any) -> str:
    group = zarr.create_group(folder / "a.zarr", overwrite=True)
    group.create_array("inputs", data=inputs, **{"chunks": (16, *(2 for _ in inputs.shape[1:]))} | how)
    group.create_array("targets", data=labels)
    return f"zarr:{folder}/a.zarr"


def zarr_shards(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> str:
    return zarr_group(folder, inputs, labels, chunks=(8, 1), shards=(16, inputs.shape[1]))


FILES = {each.__name__: each for each in (npz, npy, csv, parquet, parquet_files, zarr_group, zarr_shards)}
"""One for each source of files."""
