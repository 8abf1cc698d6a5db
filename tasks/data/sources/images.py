"""Images: the digits of scikit-learn, and the IDX files of MNIST (LeCun, Cortes and Burges, 1998)."""

from __future__ import annotations

import gzip
import importlib.util
import math
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from roundweave.storage.errors import DataError, FileMissing
from roundweave.tasks.data.datasets import Dataset
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.sources.arrays import check_memory, reading
from roundweave.tasks.data.sources.table import Source

IDX_SETS = {"mnist": (255.0, 0.1307, 0.3081), "fashion-mnist": (255.0, 0.2860, 0.3530)}
"""Divisor, mean and deviation of the training pixels."""

MOST_PACKED = 1032
"""The largest factor by which unpacking gzip can grow a file (zlib's technical details)."""


@dataclass(frozen=True)
class Idx(Source):
    """MNIST or Fashion-MNIST: the four IDX files in a folder, compressed by gzip or not."""

    name: str
    folder: str

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """60,000 training and 10,000 held-out images (1, 28, 28), labels 0 to 9."""
        return Dataset(self._examples("train"), self._examples("t10k"), IDX_SETS[self.name])

    def _examples(self, part: str) -> Examples:
        """Images uint8 (images, 1, height, width) and their labels int64 (images,), from 0 to 9."""
        _, images = _read(self.folder, f"{part}-images", rank=3)
        path, labels = _read(self.folder, f"{part}-labels", rank=1)
        if labels.max() > 9:
            wrong = f"label {labels.max()} of {part} image {labels.argmax()}"
            raise DataError(f"{path}: {wrong} is out of range 0 to 9; fetch the file again")
        if len(images) != len(labels):
            counts = f"{len(images)} {part} images but {len(labels)} labels"
            raise DataError(f"{self.folder}: {counts}; fetch the files again")
        return Examples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


mnist = partial(Idx, "mnist")
fashion = partial(Idx, "fashion-mnist")


def _read(folder: str, stem: str, rank: int) -> tuple[Path, np.ndarray]:
    """Read an IDX file of a folder, compressed or not. Return its path and its bytes with `rank` dimensions."""
    plain = f"{stem}-idx{rank}-ubyte"
    path = next((path for name in (f"{plain}.gz", plain) if (path := Path(folder, name)).is_file()), None)
    if path is None:
        raise FileMissing(f"no {plain}.gz or {plain} in {folder}; put the four IDX files of the data set there")
    packed = path.suffix == ".gz"
    with reading(path, "an IDX file"), gzip.open(path) if packed else path.open("rb") as file:
        header = file.read(4 + 4 * rank)
        shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, len(header), 4))
        if header[:4] != bytes((0, 0, 8, rank)) or len(header) < 4 + 4 * rank or 0 in shape:
            what = f"no IDX file of unsigned bytes in {rank} dimensions, or there is nothing to learn from"
            raise DataError(f"{path} is {what}; fetch it again")
        size, most = math.prod(shape), path.stat().st_size * (MOST_PACKED if packed else 1)
        if size > most:
            raise DataError(f"{path} promises {shape} bytes and holds {most} at most; fetch it again")
        check_memory(path, size)
        content = file.read(size + 1)
    if len(content) != size:
        held = "more" if len(content) > size else len(content)
        raise DataError(f"{path} promises {shape} bytes and holds {held}; fetch it again")
    return path, np.frombuffer(bytearray(content), np.uint8).reshape(shape)


@dataclass(frozen=True)
class Digits(Source):
    """The 1797 handwritten digits of 8 x 8 pixels that come with scikit-learn."""

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Inputs (1797, 1, 8, 8) from 0 to 1, labels 0 to 9."""
        # The file is read directly, as importing scikit-learn takes longer than a short run's first round.
        spec = importlib.util.find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise DataError("the digits come with scikit-learn, which is not installed")
        table = _table(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz")
        images = torch.from_numpy(table[:, :-1]).to(torch.float32).reshape(-1, 1, 8, 8) / 16
        return Dataset(Examples(images, torch.from_numpy(table[:, -1]).to(torch.int64)))


@cache
def _table(path: Path) -> np.ndarray:
    """Return the numbers of a file, cached: reading takes as long as a small run's rounds.

    Do not write to them.
    """
    return np.loadtxt(path, delimiter=",")
