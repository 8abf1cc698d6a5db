"""Draws the picture of the first page: twelve hospitals, of which one has wrong labels.

Run ``python docs/picture.py docs/static/rounds.png`` to draw it again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

import roundweave as rw

HOSPITALS = [
    "Ghent",
    "Graz",
    "Kyoto",
    "Lima",
    "Lyon",
    "Oslo",
    "Porto",
    "Quito",
    "Riga",
    "Tartu",
    "Turin",
    "Utrecht",
]
WRONG = "Lyon"


def examples() -> pd.DataFrame:
    """The digits, each at a hospital; the labels of one hospital are wrong."""
    inputs, labels = load_digits(return_X_y=True)
    table = pd.DataFrame(inputs / 16, columns=[f"pixel{number}" for number in range(64)])
    generator = np.random.default_rng(0)
    table["hospital"] = generator.choice(HOSPITALS, len(table))
    table["label"] = np.where(table["hospital"] == WRONG, (labels + 1 + generator.integers(9)) % 10, labels)
    return table


def draw(target: Path) -> None:
    """Train the run, and draw its history and what its partitions sent."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "digits.csv"
        examples().to_csv(table, index=False)
        config = rw.TrainConfig(
            data=f"csv:{table}",
            target="label",
            split="by:hospital",
            partitions=len(HOSPITALS),
            rounds=12,
            lr=0.3,
            executor="inline",
            root=Path(folder) / "runs",
            name="hospitals",
        )
        run = rw.train(config, bar=False)
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(4, 6))
        run.plot.history(left)
        run.plot.divergence("cosine", right)
        figure.savefig(target, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
