"""Numbers reach the network as they are in the data, to the last digit of the run's type, or are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from roundweave.storage.errors import DataError
from roundweave.tasks.data.collating import batch_of, examples_of
from roundweave.tasks.data.datasets import Dataset
from roundweave.tasks.data.description import check_distinct
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.table import find_source
from roundweave.tasks.data.splits.split import Split

EVENTS = pd.DataFrame(
    {"seconds": 1_600_000_000 + np.arange(91), "share": np.arange(91) / 10, "late": np.arange(91) % 2}
)
ARRAYS = {"x": np.stack([EVENTS["seconds"], EVENTS["share"]], axis=1), "y": EVENTS["late"].to_numpy()}

OWN = """
import numpy as np
import torch
from roundweave import Stream
X = np.stack([1_600_000_000.0 + np.arange(91), np.arange(91) / 10], axis=1)
def arrays(): return X, np.arange(91) % 2
def pairs(): return torch.utils.data.TensorDataset(torch.tensor(X), torch.arange(91) % 2)
def stream(): return Stream(({"x": x, "label": row % 2} for row, x in enumerate(X.tolist())), examples=91)
def hub(): return __import__("datasets").Dataset.from_dict({"x": X.tolist(), "label": [0] * 91})
"""


@pytest.fixture(params=["csv", "parquet", "groups", "npz", "npy", "arrays", "pairs", "stream", "hub"])
def events(request, tmp_path: Path, own) -> str:
    """The name of data with the same 91 events."""
    files = {"csv": "t.csv", "parquet": "t.parquet", "groups": "*.parquet", "npz": "t.npz", "npy": "t.npy"}
    EVENTS.to_csv(tmp_path / "t.csv", index=False)
    EVENTS.to_parquet(tmp_path / "t.parquet", row_group_size=40)
    np.savez(tmp_path / "t.npz", **ARRAYS)
    np.save(tmp_path / "t.npy", ARRAYS["x"]), np.save(tmp_path / "targets.npy", ARRAYS["y"])
    if request.param not in files:
        return f"{own(OWN)}:{request.param}"
    return f"{request.param.replace('groups', 'parquet')}:{tmp_path / files[request.param]}"


def test_numbers_of_float64_are_those_of_the_data(events: str) -> None:
    """float32 has a step of 128 at 1.6e9: two numbers for the 91 seconds. 0.1 is another number in it."""
    batch = find_source(events).load(0, 1).take(np.arange(91), "float64")
    assert np.array_equal(batch.inputs.numpy(), ARRAYS["x"])
    assert len(np.unique(ARRAYS["x"][:, 0].astype(np.float32))) == 2


@pytest.mark.parametrize("events", ["csv", "parquet", "groups", "npz", "npy", "arrays"], indirect=True)
def test_numbers_that_float32_cannot_tell_apart_are_refused_in_it(events: str) -> None:
    says = r"91 different inputs in column (seconds|0) are 2 in float32; give --dtype float64, or subtract"
    with pytest.raises(DataError, match=says):
        Partitions(find_source(events), Split(2)).describe(0)
    assert Partitions(find_source(events), Split(2), "float64").describe(0).examples == 82


@pytest.mark.parametrize(
    ("numbers", "fits"),
    [
        (np.array([1e9, 1e9 + 1]), False),
        (1.6e9 + np.arange(0.0, 86_400, 10), False),
        (1.6e9 + np.arange(0.0, 3e7, 1e4), True),
        (101_325 + np.random.default_rng(0).normal(size=1000), True),
        (np.random.default_rng(0).normal(size=1000), True),
        (1 + 1e-15 * np.arange(50), True),
        (np.full(9, 0.1), True),
        (np.zeros(9), True),
    ],
)
def test_only_columns_that_float32_would_merge_are_refused(numbers: np.ndarray, fits: bool) -> None:
    """Ten seconds apart in a day, 13 of 14 are gone; in a year none. What is rounding anyway is one number."""
    tensor = torch.from_numpy(numbers)
    for examples in (Examples(tensor[:, None], tensor.float()), Examples(tensor.float()[:, None], tensor)):
        dataset = Dataset(examples)
        if fits:
            check_distinct(dataset, "float32", "mine")
        else:
            with pytest.raises(DataError, match=r"in column 0 are \d+ in float32"):
                check_distinct(dataset, "float32", "mine")
        check_distinct(dataset, "float64", "mine")


@pytest.mark.parametrize("pattern", ["t.parquet", "*.parquet"])
def test_whole_numbers_that_no_float_tells_apart_are_refused(tmp_path: Path, pattern: str) -> None:
    ids = 2**53 + np.arange(1, 5)
    pd.DataFrame({"id": ids, "x": 1.0, "y": [0, 1, 0, 1]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'id' has whole numbers beyond 2\^53; subtract what they share"):
        find_source(f"parquet:{tmp_path / pattern}").load(0, 1).take(np.arange(4), "float64")


def test_pixels_are_scaled_in_the_type_of_the_run(tmp_path: Path) -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(64, 2, 2)
    np.savez(tmp_path / "p.npz", x=pixels, y=np.arange(64) % 2)
    dataset = find_source(f"npz:{tmp_path / 'p.npz'}").load(0, 1)
    assert np.array_equal(dataset.take(np.arange(64), "float64").inputs.numpy(), pixels / 255)
    assert np.array_equal(dataset.take(np.arange(64), "float32").inputs.numpy(), pixels / np.float32(255))


def test_times_are_no_labels(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": [1.0, 2.0], "when": pd.to_datetime(["2024-01-01", "2025-01-01"])})
    table.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="column 'when' holds datetime64s; code them as whole numbers or floats"):
        find_source(f"parquet:{tmp_path / 't.parquet'}").load(0, 1)


@pytest.mark.parametrize("make", [lambda masked: masked, list])
@pytest.mark.parametrize(
    "convert", [lambda x, y: examples_of(x, y, "mine"), lambda x, y: batch_of((x, y), "mine")]
)
def test_masked_numbers_are_refused_with_their_count(make, convert) -> None:
    whole, labels = np.ma.masked_array(np.arange(6.0).reshape(3, 2)), np.ma.masked_array([0, 1, 0])
    assert convert(make(whole), make(labels)).inputs.tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(DataError, match="mine: 2 numbers are masked; fill them or remove the examples"):
        convert(make(np.ma.masked_greater(whole, 3)), make(labels))
    with pytest.raises(DataError, match="mine: 1 numbers are masked"):
        convert(make(whole), make(np.ma.masked_equal(labels, 1)))
