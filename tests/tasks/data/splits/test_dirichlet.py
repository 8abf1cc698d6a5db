"""Labels in other proportions in each partition."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import DataError, UsageError
from tasks.data.splits.deals import Pool
from tasks.data.splits.split import Split

LABELS = np.arange(6000) % 10


def shares(alpha: float, labels: np.ndarray = LABELS, partitions: int = 12, seed: int = 0) -> np.ndarray:
    """The share of each label in each partition."""
    parts = Split(partitions, f"dirichlet:{alpha}", seed).rows(Pool(np.arange(len(labels)), labels), 0)
    return np.array([np.bincount(labels[part], minlength=10) / len(part) for part in parts])


def test_partitions_are_of_one_size() -> None:
    parts = Split(7, "dirichlet:0.1").rows(Pool(np.arange(6000), LABELS), 0)
    assert [len(part) for part in parts] == [6000 * (i + 1) // 7 - 6000 * i // 7 for i in range(7)]


def test_a_large_alpha_gives_the_proportions_of_all() -> None:
    labels = np.repeat(np.arange(3), [3000, 2000, 1000])
    assert np.abs(shares(1e9, labels)[:, :3] - [1 / 2, 1 / 3, 1 / 6]).max() < 0.1


def test_a_small_alpha_gives_one_label() -> None:
    first = shares(1e-6)[:10]
    assert np.mean(first.max(1) > 0.99) > 0.5


def test_proportions_spread_as_the_distribution_says() -> None:
    """The variance of a Dirichlet(alpha p) share is p (1 - p) / (alpha + 1): 0.09 / 3 for alpha 2.

    Only the first partition is drawn with all labels left; 400 seeds give its variance within a few percent, and
    multinomial noise of 500 draws adds p (1 - p) / 500 and less.
    """
    found = np.array([shares(2.0, seed=seed)[0] for seed in range(400)])
    assert found.var(0).mean() == pytest.approx(0.09 / 3, rel=0.15)
    assert found.mean(0) == pytest.approx(0.1, abs=0.04)


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet_by_class"])
@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf"])
def test_other_alphas_are_refused(kind: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"split {kind}:{text}: '{text}' is no number above 0"):
        Split(2, f"{kind}:{text}")


# Each class dealt over the partitions.


def dealt(alpha: float, labels: np.ndarray = LABELS, partitions: int = 4, seed: int = 0) -> np.ndarray:
    """How many examples of each label each partition has."""
    parts = Split(partitions, f"dirichlet_by_class:{alpha}", seed).rows(Pool(np.arange(len(labels)), labels), 0)
    return np.array([np.bincount(labels[part], minlength=10) for part in parts])


def test_classes_are_dealt_in_shares_of_their_own_and_sizes_differ() -> None:
    """A share of Dirichlet(alpha, alpha, ...) over n partitions has variance (n - 1) / (n^2 (n alpha + 1))."""
    first = np.array([dealt(0.5, seed=seed)[:, 0] / 600 for seed in range(400)])
    assert first.mean(0) == pytest.approx(0.25, abs=0.04)
    assert first.var(0).mean() == pytest.approx(3 / (16 * (4 * 0.5 + 1)), rel=0.15)
    assert np.ptp(dealt(0.5).sum(1)) > 600


def test_a_large_alpha_deals_each_class_evenly() -> None:
    assert np.abs(dealt(1e9) - 150).max() <= 1


def test_who_has_an_even_share_gets_no_more() -> None:
    """Of two partitions and two classes the greater part of the first class is all that a partition gets."""
    labels = np.repeat([0, 1], 300)
    for seed in range(20):
        counts = dealt(0.05, labels, 2, seed)[:, :2]
        if counts[:, 0].max() == 300:
            assert counts[counts[:, 0].argmax(), 1] == 0


@pytest.mark.parametrize(("partitions", "least"), [(4, 10), (300, 10), (600, 5)])
def test_no_partition_is_left_without_examples(partitions: int, least: int) -> None:
    assert dealt(2.0, partitions=partitions).sum(1).min() >= least


def test_what_no_draw_can_give_is_said() -> None:
    with pytest.raises(DataError, match="some of 500 partitions always had fewer than 6 examples; use a larger"):
        dealt(0.001, partitions=500)
