"""Reduces by name."""

from __future__ import annotations

import pickle

import pytest

from storage.errors import UsageError
from tasks.algebra import Reduce
from tasks.algorithms.table import build_algorithm
from tasks.reduces.mean import Mean
from tasks.reduces.robust import GeometricMedian, Krum, Median, TrimmedMean
from tasks.reduces.table import REDUCES, find_reduce


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mean", Mean()),
        ("plain_mean", Mean(weighted=False)),
        ("median", Median()),
        ("trimmed_mean:2", TrimmedMean(2)),
        ("krum:1", Krum(1)),
        ("krum:1:3", Krum(1, keep=3)),
        ("geometric_median", GeometricMedian()),
    ],
)
def test_a_name_and_its_arguments_are_a_value(text: str, wanted: Reduce) -> None:
    found = find_reduce(text)
    assert found == wanted == pickle.loads(pickle.dumps(found))
    assert eval(repr(found)) == wanted
    assert build_algorithm("fed_avg", {}, {"reduce": text}).reduce == wanted
    assert build_algorithm("matched", {"average": text}).reduce.averaging == wanted


def test_every_reduce_of_the_table_is_named_above() -> None:
    assert set(REDUCES) == {"mean", "plain_mean", "median", "trimmed_mean", "krum", "geometric_median", "matched"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "medain",
            r"unknown reduce 'medain'; did you mean median\? There are mean, plain_mean, median, trimmed_mean:F",
        ),
        ("trimmed_mean", "reduce trimmed_mean needs its F: trimmed_mean:F"),
        ("krum:one", r"must be written krum:F\[:KEEP\]"),
        ("krum:-1", "krum takes f from 0 and keep from 1, not -1 and 1"),
        ("krum:1:0", "krum takes f from 0 and keep from 1, not 1 and 0"),
        ("trimmed_mean:-1", "leaves out f = 0 or more at each end, not -1"),
        ("geometric_median:0", "geometric_median takes steps from 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        build_algorithm("fed_avg", {}, {"reduce": text})
