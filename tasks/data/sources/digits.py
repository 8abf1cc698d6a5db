"""The handwritten digits that come with scikit-learn."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from storage.errors import DataError
from tasks.data.examples import Dataset, Examples
from tasks.data.sources.base import Source


@dataclass(frozen=True)
class Digits(Source):
    """The 1797 handwritten digits of 8 x 8 pixels that come with scikit-learn."""

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Inputs (1797, 1, 8, 8) from 0 to 1, labels 0 to 9."""
        # The file is read directly, as importing scikit-learn takes longer than a short run's first round.
        spec = importlib.util.find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise DataError("the digits come with scikit-learn, which is not installed")
        table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        images = torch.from_numpy(table[:, :-1]).to(torch.float32).reshape(-1, 1, 8, 8) / 16
        return Dataset(Examples(images, torch.from_numpy(table[:, -1]).to(torch.int64)))
