"""Numbers by round: each has the name that it was reported under, whenever that was seen first."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import UsageError
from roundweave.storage.hierarchy.schema import METRIC_ROWS
from roundweave.storage.rounds.commits import TAKEN, Commit, Score, metric_problem
from roundweave.storage.rounds.recovery import recover
from roundweave.storage.rounds.store import RoundStore
from tests.storage.conftest import lengthened

NAN = float("nan")


def reporting(commit: Commit, *metrics: dict[str, float], score: Score | None = None) -> Commit:
    """The commit, its partitions reporting these metrics."""
    updates = {p: replace(commit.updates[p], metrics=told) for p, told in enumerate(metrics)}
    return replace(commit, updates=updates, score=score)


@pytest.fixture
def late(tiny) -> RoundStore:
    """Round 1 reports a, round 2 also b c of one partition, round 3 nothing; rounds 2 and 3 are scored."""
    store = tiny.create(rounds=3)
    store.commit(reporting(tiny.write(store, 1), {"a": 1.0}, {"a": 2.0}))
    told = {"a": 3.0}, {"a": 4.0, "b c": 5.0}
    store.commit(reporting(tiny.write(store, 2), *told, score=Score(0.5, {"f1": 0.25}, 8)))
    store.commit(reporting(tiny.write(store, 3), {}, {}, score=Score(0.25, {}, 8)))
    store.numbers.catch_up()
    return store


WANTED = {
    "metrics/a": [[NAN, NAN], [1, 2], [3, 4], [NAN, NAN]],
    "metrics/b c": [[NAN, NAN], [NAN, NAN], [NAN, 5], [NAN, NAN]],
    "scores/loss": [NAN, NAN, 0.5, 0.25],
    "scores/f1": [NAN, NAN, 0.25, NAN],
}


def numbers(store: RoundStore, path: str) -> np.ndarray:
    """The numbers as zarr has them."""
    return zarr.open_array(store.path / path, mode="r")[...]


def test_what_is_reported_has_an_array_from_the_round_that_reports_it_first(late) -> None:
    assert [name for name in late.place.names("metrics") if name != "zarr.json"] == ["a", "b c"]
    assert [name for name in late.place.names("scores") if name != "zarr.json"] == ["f1", "loss"]
    for path, wanted in WANTED.items():
        np.testing.assert_array_equal(numbers(late, path), wanted)


def test_plain_readers_see_the_numbers(late) -> None:
    group = zarr.open_group(late.path, mode="r", zarr_format=3, use_consolidated=False)
    with xr.open_datatree(late.path, engine="zarr", consolidated=False) as tree:
        for path, numbers in WANTED.items():
            np.testing.assert_array_equal(group[path][...], numbers)
            np.testing.assert_array_equal(tree[path].values, numbers)
            assert tree[path].dims == ("round", "partition")[: np.ndim(numbers)]
        assert tree["metrics"]["round"].values.tolist() == [0, 1, 2, 3]


def test_the_next_writer_copies_what_a_killed_one_did_not_come_to(tiny, late) -> None:
    store = tiny.create("killed", rounds=3)
    for round in (1, 2, 3):
        store.log.create(late.log.read(round))
    assert not (store.path / "metrics").exists()
    store.numbers.catch_up()
    for path, wanted in WANTED.items():
        np.testing.assert_array_equal(numbers(store, path), wanted)
    assert numbers(store, "committed").tolist() == [True] * 4


def test_recovering_makes_them_anew(late, flip) -> None:
    flip(late.path / "scores/f1/c/0")
    late.place.delete("metrics/a")
    assert recover(late) == (3, [])
    for path, wanted in WANTED.items():
        np.testing.assert_array_equal(numbers(late, path), wanted)


def test_what_only_rounds_that_were_quarantined_reported_is_gone(tiny, late, flip) -> None:
    flip(late.path / "params/fc.weight/c/2/0/0")
    flip(late.path / "params/fc.weight/c/3/0/0")
    assert recover(late) == (1, [2, 3])
    np.testing.assert_array_equal(numbers(late, "metrics/a"), [[NAN, NAN], [1, 2], [NAN, NAN], [NAN, NAN]])
    assert not (late.path / "metrics/b c").exists()
    assert not (late.path / "scores/loss").exists()
    assert numbers(late, "committed").tolist() == [True, True, False, False]


def test_chunks_after_the_last_whole_round_are_gone(tiny, flip) -> None:
    store = tiny.create(rounds=METRIC_ROWS)
    store.commit(reporting(tiny.write(store, 1), {"a": 1.0}, {"a": 2.0}))
    store.commit(reporting(tiny.write(store, METRIC_ROWS), {"a": 3.0}, {"a": 4.0}))
    store.numbers.catch_up()
    flip(store.path / f"params/fc.weight/c/{METRIC_ROWS}/0/0")
    assert recover(store) == (1, [METRIC_ROWS])
    for path in ("metrics/a", "committed", "bookkeeping/seconds", "bookkeeping/weight"):
        assert store.place.names(f"{path}/c") == ["0"]
    assert np.flatnonzero(numbers(store, "committed")).tolist() == [0, 1]


def test_extending_lengthens_what_was_reported(tiny, late) -> None:
    longer = lengthened(late, METRIC_ROWS + 2)
    for path in WANTED:
        shape = json.loads((late.path / path / "zarr.json").read_text())["shape"]
        assert shape[0] == METRIC_ROWS + 3
    longer.commit(reporting(tiny.write(longer, METRIC_ROWS + 2), {"new": 7.0}, {}))
    recover(longer)
    np.testing.assert_array_equal(numbers(longer, "metrics/new")[-1], [7, NAN])
    with xr.open_datatree(late.path, engine="zarr", consolidated=False) as tree:
        assert tree["metrics/new"].shape == (METRIC_ROWS + 3, 2)


def test_a_long_run_costs_nothing_before_its_rounds(tiny) -> None:
    rounds = 3 * METRIC_ROWS
    store = lengthened(tiny.create(rounds=rounds), 2 * rounds)
    chunks = [path for path in store.path.rglob("c/*") if path.is_file() and "params" not in path.parts]
    ahead = [path for path in chunks if "round" in path.relative_to(store.path).parts[:1]]
    assert len(ahead) == 2 * rounds // METRIC_ROWS + 1
    assert {path.name for path in chunks if path not in ahead} == {"0"}
    root = xr.open_zarr(store.path, consolidated=False)
    assert np.array_equal(root["round"], np.arange(2 * rounds + 1))
    assert np.flatnonzero(root["committed"]).tolist() == [0]


# Names.


@pytest.mark.parametrize("name", ["a", "train_loss", "Top-5 acc", "p@1", "a.b", "_", "-", "0", "x" * 100, "zarr"])
def test_names_of_metrics(name) -> None:
    assert metric_problem(name) is None


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "a/b", "../a", "a\\b", "a\n", "a\0", "ä", "x" * 101, None, 3, b"a", *TAKEN],
    ids=repr,
)
def test_what_is_no_name_of_a_metric(name) -> None:
    problem = metric_problem(name)
    assert problem and "\n" not in problem


@pytest.mark.parametrize("name", ["../../out", "round", "a/b"])
def test_a_name_that_is_none_is_refused_before_the_round_exists(tiny, name) -> None:
    store = tiny.create()
    commit = tiny.write(store, 1)
    with pytest.raises(UsageError):
        store.commit(reporting(commit, {name: 1.0}, {}))
    with pytest.raises(UsageError):
        store.commit(replace(commit, score=Score(1.0, {name: 1.0})))
    with pytest.raises(UsageError, match="cannot be called 'loss'"):
        store.commit(replace(commit, score=Score(1.0, {"loss": 1.0})))
    assert store.log.rounds() == [0]
    store.commit(commit)


@given(st.lists(st.from_regex(r"[A-Za-z0-9_@ -][A-Za-z0-9_.@ -]{0,99}", fullmatch=True), max_size=4, unique=True))
@settings(max_examples=8)
def test_any_names_open_in_xarray(tiny_in, tmp_path_factory, names) -> None:
    told = {name: 1.5 for name in names if metric_problem(name) is None and name != "loss"}
    tiny = tiny_in(tmp_path_factory.mktemp("named"))
    store = tiny.create()
    store.commit(reporting(tiny.write(store, 1), told, {}, score=Score(1.0, told)))
    store.numbers.catch_up()
    with xr.open_datatree(store.path, engine="zarr", consolidated=False) as tree:
        for name, number in told.items():
            np.testing.assert_array_equal(tree["metrics"].ds[name][1], [number, NAN])
            assert tree["scores"].ds[name][1] == number
