"""How labels are spread over partitions: counted by hand, and drawn as counted."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from roundweave import Dataset, Examples, Partitions, Source, Split, draw_counts, label_counts

matplotlib.use("Agg")


@dataclass(frozen=True)
class Given(Source):
    """Six examples with these targets; apart, partition p has only the last p + 2 of them."""

    targets: tuple = (0, 0, 2, 2, 2, 0)
    apart: bool = False

    @property
    def partitioned(self) -> bool:
        return self.apart

    def load(self, partition: int, partitions: int) -> Dataset:
        targets = torch.tensor(self.targets)
        rows = slice(-partition - 2, None) if self.apart else slice(None)
        return Dataset(Examples(torch.zeros(6, 1)[rows], targets[rows]))


def counted(source: Given, split: Split) -> pd.DataFrame:
    return label_counts(Partitions(source, split, held_out=0))


def test_counts_by_hand() -> None:
    counts = counted(Given(), Split(2, "contiguous"))
    assert counts.columns.tolist() == [0, 1, 2, "size"]
    assert counts.to_numpy().tolist() == [[2, 0, 1, 3], [1, 0, 2, 3]]
    assert (counts.index.name, counts.columns.name) == ("partition", "label")


def test_partitions_that_are_loaded_apart_are_counted_too() -> None:
    assert counted(Given(apart=True), Split(2)).to_numpy().tolist() == [[1, 0, 1, 2], [1, 0, 2, 3]]


@pytest.mark.parametrize("targets", [(0.5,) * 6, ((1, 2),) * 6])
def test_targets_that_are_no_single_labels_have_sizes_only(targets) -> None:
    counts = counted(Given(targets), Split(2, "contiguous"))
    assert counts.to_dict("list") == {"size": [3, 3]}
    assert draw_counts(counts).get_legend() is None


def bars(ax) -> np.ndarray:
    """(label, partition, (start, length)) of what is drawn."""
    return np.array([[(bar.get_x(), bar.get_width()) for bar in pieces] for pieces in ax.containers])


def test_bars_go_by_the_names_of_partitions_and_those_of_some_by_their_own_numbers() -> None:
    counts = counted(Given(apart=True), Split(4))
    for table, called in ((counts.set_axis([*"abcd"]), "abcd"), (counts.loc[2:], "23")):
        axes = draw_counts(table)
        assert [text.get_text() for text in axes.get_yticklabels()] == [*called]
        assert axes.get_yticks().tolist() == [*range(len(called))]


def test_each_count_is_a_piece_of_its_partitions_bar() -> None:
    counts = counted(Given(), Split(2, "contiguous"))
    mine = Figure().subplots()
    ax = draw_counts(counts, mine)
    assert ax is mine
    assert bars(ax).tolist() == [[[0, 2], [0, 1]], [[2, 0], [1, 0]], [[2, 1], [1, 2]]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1", "2"]
