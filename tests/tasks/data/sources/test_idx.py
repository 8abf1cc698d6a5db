"""IDX files: every way in which one can be broken is one clear line that names it."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from roundweave.storage.errors import DataError
from roundweave.tasks.data.sources.images import Idx

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 4, 3), np.uint8)
LABELS = np.array([0, 9, 3, 3, 1], np.uint8)


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim))
    return head + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write(folder: Path, packed: bool, part: str = "train", images=IMAGES, labels=LABELS) -> None:
    for stem, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
        content = array if isinstance(array, bytes) else idx(array)
        path = folder / (f"{stem}.gz" if packed else stem)
        path.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [True, False])
def test_images_and_labels_come_back(tmp_path, packed: bool) -> None:
    write(tmp_path, packed)
    write(tmp_path, packed, "t10k")
    train = Idx("mnist", str(tmp_path)).load().train
    assert (train.inputs.shape, train.inputs.dtype) == ((5, 1, 4, 3), torch.uint8)
    assert np.array_equal(train.inputs.numpy()[:, 0], IMAGES)
    assert (train.targets.dtype, train.targets.tolist()) == (torch.int64, LABELS.tolist())


def test_a_data_set_is_its_four_files_scaled_when_taken(tmp_path) -> None:
    write(tmp_path, True)
    write(tmp_path, False, "t10k", IMAGES[:2], LABELS[:2])
    dataset = Idx("mnist", str(tmp_path)).load()
    assert (len(dataset.train), len(dataset.held_out)) == (5, 2)
    taken = dataset.take(np.array([1]), "float32").inputs.numpy()[0, 0]
    np.testing.assert_allclose(taken, (IMAGES[1] / 255 - 0.1307) / 0.3081, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", ["train", "t10k"])
@pytest.mark.parametrize("kind", ["images", "labels"])
def test_a_missing_file_is_named(tmp_path, part: str, kind: str) -> None:
    write(tmp_path, True)
    write(tmp_path, True, "t10k")
    rank = {"images": 3, "labels": 1}[kind]
    name = f"{part}-{kind}-idx{rank}-ubyte"
    (tmp_path / f"{name}.gz").unlink()
    with pytest.raises(DataError, match=rf"no {name}\.gz or {name} in {tmp_path}"):
        Idx("mnist", str(tmp_path)).load()


def broken(folder: Path, name: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        Idx("mnist", str(folder)).load()
    assert str(folder / name) in str(caught.value)


PACKED, WHOLE = gzip.compress(idx(IMAGES), mtime=0), idx(IMAGES)
NO_IDX = "is no IDX file of unsigned bytes in 3 dimensions"


@pytest.mark.parametrize(
    ("packed", "content", "reason"),
    [
        *((True, PACKED[: int(left * len(PACKED))], "fetch it again|cannot be read") for left in (0, 0.5, 0.99)),
        (True, PACKED[:40] + bytes([PACKED[40] ^ 1]) + PACKED[41:], "cannot be read as an IDX file: "),
        *((False, WHOLE[:left], "no IDX file|it is empty|promises") for left in (0, 3, 4, 15, 16, 75)),
        (False, WHOLE + b"\0", r"promises \(5, 4, 3\) bytes and holds"),
        (False, b"<!DOCTYPE html><html>not found</html>", NO_IDX),
        (False, b"\x00\x00\x0d\x03" + WHOLE[4:], NO_IDX),
        (False, idx(LABELS), NO_IDX),
        (False, b"\x00\x00\x08\x02" + bytes(100), NO_IDX),
        (False, idx(np.zeros((5, 0, 0), np.uint8)), "nothing to learn from"),
        (False, idx(np.zeros((0, 4, 3), np.uint8)), "nothing to learn from"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,
)
def test_a_file_that_is_broken_or_of_another_kind_is_named(tmp_path, packed: bool, content, reason: str) -> None:
    write(tmp_path, packed)
    name = "train-images-idx3-ubyte" + ".gz" * packed
    (tmp_path / name).write_bytes(content)
    broken(tmp_path, name, reason)


def test_a_label_out_of_range_is_named_with_its_image_and_file(tmp_path) -> None:
    write(tmp_path, False, labels=np.array([0, 1, 2, 10, 3], np.uint8))
    broken(tmp_path, "train-labels-idx1-ubyte", "label 10 of train image 3 is out of range 0 to 9")


def test_images_without_labels_are_refused(tmp_path) -> None:
    write(tmp_path, False, labels=LABELS[:4])
    write(tmp_path, False, "t10k")
    with pytest.raises(DataError, match="5 train images but 4 labels"):
        Idx("mnist", str(tmp_path)).load()


@contextmanager
def memory(most: float) -> Iterator[None]:
    """What is done takes no more bytes of memory at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shape", [(1 << 31, 1 << 31, 4), (1 << 16, 1 << 16, 1 << 16), (1 << 31, 1, 1)])
def test_sizes_whose_product_wraps_or_is_not_there_take_no_memory(tmp_path, packed: bool, shape) -> None:
    content = idx(IMAGES)[:4] + b"".join(n.to_bytes(4, "big") for n in shape)
    write(tmp_path, packed, images=content)
    with memory(1e6):
        broken(tmp_path, "train-images-idx3-ubyte" + ".gz" * packed, "promises")


def test_more_than_is_promised_is_not_unpacked(tmp_path) -> None:
    write(tmp_path, True, images=idx(IMAGES) + bytes(1 << 26))
    with memory(4e6):
        broken(tmp_path, "train-images-idx3-ubyte.gz", r"promises \(5, 4, 3\) bytes and holds more")
