"""Numbers reach the network as they are in the data, to the last digit of the run's type, or are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from roundweave import Dataset, Examples, find_source
from roundweave.storage.errors import DataError
from roundweave.tasks.data.collating import batch_of, examples_of
from roundweave.tasks.data.description import check_distinct


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


def test_pixels_are_scaled_in_the_type_of_the_run(tmp_path: Path) -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(64, 2, 2)
    np.savez(tmp_path / "p.npz", x=pixels, y=np.arange(64) % 2)
    dataset = find_source(f"npz:{tmp_path / 'p.npz'}").load(0, 1)
    assert np.array_equal(dataset.take(np.arange(64), "float64").inputs.numpy(), pixels / 255)
    assert np.array_equal(dataset.take(np.arange(64), "float32").inputs.numpy(), pixels / np.float32(255))


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
