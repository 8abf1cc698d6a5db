"""Arrays in an .npz file: what comes back, and every way in which the file can be wrong."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from roundweave.storage.errors import DataError
from roundweave.tasks.data.sources.arrays import Npz

X, Y = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([2, 0, 1], np.uint8)


@pytest.fixture
def file(tmp_path):
    def write(**arrays: np.ndarray) -> str:
        np.savez(tmp_path / "a.npz", **arrays)
        return str(tmp_path / "a.npz")

    return write


@pytest.mark.parametrize(
    "names",
    [("inputs", "targets", "held_out_inputs", "held_out_targets"), ("x_train", "y_train", "x_test", "y_test")],
)
def test_held_out_examples_and_a_column_may_come_along(file, names) -> None:
    path = file(**dict(zip(names, (X, Y / 2, X[:1], Y[:1] / 4), strict=True)), place=np.array(["b", "a", "b"]))
    dataset = Npz(path, by="place").load()
    assert dataset.train.inputs.tolist() == X.tolist()
    assert dataset.train.targets.tolist() == [1, 0, 0.5]
    assert (dataset.held_out.inputs.tolist(), dataset.held_out.targets.tolist()) == (X[:1].tolist(), [0.5])
    assert dataset.columns["place"].tolist() == ["b", "a", "b"]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"inputs": X}, "has the arrays inputs; name them inputs and targets"),
        ({"inputs": X, "targets": Y[:2]}, r"arrays have shapes \(3, 2\), \(2,\); give all the same"),
        ({"x": X, "y": Y, "y_held_out": Y}, "has no array x_held_out beside y_held_out"),
        ({"x": X, "y": Y, "x_held_out": X}, "has no array y_held_out beside x_held_out"),
        ({"x": X, "y": np.array(["a", "b", "c"])}, "that is no array"),
        ({"x": X, "y": np.array([None, 1, 2])}, "cannot be read as an .npz file: ValueError: Object arrays"),
    ],
    ids=str,
)
def test_other_arrays_are_refused(file, arrays, says: str) -> None:
    path = file(**arrays)
    with pytest.raises(DataError, match=says) as caught:
        Npz(path).load()
    assert path in str(caught.value)


def test_a_column_of_another_length_is_refused(file) -> None:
    with pytest.raises(DataError, match="place must have one value for each of the 3 examples"):
        Npz(file(x=X, y=Y, place=np.arange(2)), by="place").load()


def header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def test_a_header_that_promises_too_much_is_refused_before_memory_is_taken(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("inputs.npy", header((10**9, 10**6)) + bytes(12))
        archive.writestr("targets.npy", header((3,)) + bytes(12))
    with pytest.raises(DataError, match=r"b\.npz cannot be read as an \.npz file: \w*MemoryError: Unable"):
        Npz(str(tmp_path / "b.npz")).load()


def test_more_than_there_is_memory_is_refused(file, monkeypatch) -> None:
    class Little:
        available = 10

    monkeypatch.setattr("psutil.virtual_memory", Little)
    with pytest.raises(DataError, match=r"holds 0\.0 GB, and 0\.0 GB of memory are free"):
        Npz(file(x=X, y=Y)).load()


def test_a_flipped_bit_is_named(file, flip) -> None:
    path = file(x=np.ones((50, 2), np.float32), y=np.zeros(50, int))
    flip(Path(path), 300)
    with pytest.raises(DataError, match=r"cannot be read as an \.npz file: BadZipFile: Bad CRC-32"):
        Npz(path).load()
