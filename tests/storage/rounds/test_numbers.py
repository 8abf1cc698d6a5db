"""Numbers are those of the records, whatever becomes of the arrays that have copies of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import UsageError
from roundweave.storage.hierarchy.schema import METRIC_ROWS
from roundweave.storage.hierarchy.zarr_format import read_chunk, replace_documents, write_chunk
from roundweave.storage.rounds.commits import TAKEN, Commit, Score, metric_problem
from roundweave.storage.rounds.numbers import KEY
from roundweave.storage.rounds.recovery import recover
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.hashing import json_digest
from tests.storage.conftest import thorough


@pytest.fixture
def copied(tiny) -> RoundStore:
    """A run of three rounds of room for six, whose numbers are copied, and said to be."""
    store = tiny.train(tiny.create(rounds=6), 3)
    store.numbers.seal(3)
    return store


def same(store: RoundStore, told: pd.DataFrame) -> bool:
    """Whether a run's history is what it was."""
    return bool(StoredRun(store.path).history().equals(told))


def test_a_history_of_copies_is_that_of_the_records(copied) -> None:
    told = StoredRun(copied.path).history()
    for round in (1, 2):  # which is not looked at
        (copied.path / f"commits/{round}.json").write_text("{")
    assert same(copied, told)
    copied.place.delete(KEY)
    assert StoredRun(copied.path).history().equals(told.loc[[0, 3]])


FLIPPED = ("scores/loss/c/0", "bookkeeping/weight/c/0/0", "metrics/train_loss/c/0/0", "committed/c/0", "round/c/0")


def flip_first(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def say(path: Path, **value: object) -> None:
    """Say otherwise up to which round numbers are copied, with the digest of that."""
    told = json.loads((path / KEY).read_text()) | value
    told.pop("digest")
    (path / KEY).write_text(json.dumps(told | {"digest": json_digest(told)}))


def edit(store: RoundStore, path: str, round: int, number: float) -> None:
    """Change a number by the rules of the format, its checksum included."""
    spec = store.schema.number(path, store.rounds + 1)
    chunk = read_chunk(store.place, spec, (0,)).copy()
    chunk[round] = number
    write_chunk(store.place, spec, (0,), chunk)


def add_metric(store: RoundStore) -> None:
    spec = store.schema.number("metrics/invented", store.rounds + 1)
    replace_documents(store.place, [spec])
    write_chunk(store.place, spec, (0,), np.ones(spec.chunks))


DAMAGE: dict[str, Callable[[RoundStore], object]] = {
    **{f"a bit of {key} is flipped": lambda store, key=key: flip_first(store.path / key) for key in FLIPPED},
    "a chunk is missing": lambda store: store.place.delete("scores/loss/c/0"),
    "a metric is missing": lambda store: store.place.delete("metrics"),
    "that rounds are committed is missing": lambda store: store.place.delete("committed/c/0"),
    "a chunk is empty": lambda store: store.place.write("bookkeeping/weight/c/0/0", b""),
    "what says so is empty": lambda store: store.place.write(KEY, b""),
    "what says so is of another history": lambda store: say(store.path, chain="0" * 64),
    "what says so leads elsewhere": lambda store: say(store.path, since={"../../metrics/x": 0}),
}
EDITS: dict[str, Callable[[RoundStore], object]] = {
    "a loss": lambda store: edit(store, "scores/loss", 1, 0.125),
    "the last accuracy": lambda store: edit(store, "scores/accuracy", 3, 0.5),
    "a metric that nobody reported": add_metric,
    "what is said to be copied": lambda store: say(store.path, since={"scores/loss": 9}),
    "a loss of the start": lambda store: edit(store, "scores/loss", 0, 9.0),
    "a metric": lambda store: edit(store, "metrics/train_loss", 2, 0.0),
    "a result": lambda store: edit(store, "bookkeeping/accepted", 2, 0.0),
    "a number that is gone": lambda store: edit(store, "metrics/train_loss", 2, np.nan),
}
"""What is told by a reader who does not verify."""
HARM = [*DAMAGE, *EDITS]


@pytest.mark.parametrize("harm", [HARM[0], *thorough(*HARM[1:5]), *HARM[5:16], *thorough(*HARM[16:])])
def test_what_is_missing_damaged_or_edited_is_found_and_made_anew_from_the_records(copied, harm) -> None:
    told = StoredRun(copied.path).history()
    (DAMAGE | EDITS)[harm](copied)
    assert harm in EDITS or same(copied, told)
    assert not StoredRun(copied.path).verify().sound
    assert recover(RoundStore(copied.path)) == (3, [])
    assert same(copied, told)
    assert StoredRun(copied.path).verify().findings == ()


@pytest.mark.parametrize("lost", [(2, 4), *thorough((1, 2, 3))])
def test_a_lost_round_has_no_numbers(tiny, lost) -> None:
    store = tiny.train(tiny.create(rounds=6), 6)
    store.numbers.seal(6)
    told = StoredRun(store.path).history()
    for round in lost:
        (store.path / f"commits/{round}.json").unlink()
    kept = [round for round in range(7) if round not in lost]
    assert StoredRun(store.path).history().equals(told.loc[kept])
    assert recover(RoundStore(store.path)) == (6, [])
    assert StoredRun(store.path).history().equals(told.loc[kept])
    assert StoredRun(store.path).ds["loss"].sizes["round"] == len(kept)


@settings(max_examples=8)
@given(st.lists(st.sampled_from(["commit", "copy", "say", "again"]), max_size=12))
def test_a_history_is_that_of_the_records_whatever_was_copied(tiny_in, tmp_path_factory, steps) -> None:
    tiny = tiny_in(tmp_path_factory.mktemp("copied"))
    store, done = tiny.train(tiny.create(rounds=13), 1), 1
    for step in steps:
        if step == "commit":
            done += 1
            store.commit(tiny.write(store, done))
        elif step == "copy":
            store.numbers.catch_up()
        elif step == "say":
            store.numbers.seal(store.numbers.last)
        else:
            store = RoundStore(store.path)
            recover(store)
    history = StoredRun(store.path).history()
    assert history["loss"].tolist()[1:] == [1 / round for round in range(1, done + 1)]
    assert history["train_loss"].tolist()[1:] == [(10 * r + 11 * (r + 1)) / 21 for r in range(1, done + 1)]


# Arrays.


NAN = float("nan")


def reporting(commit: Commit, *metrics: dict[str, float], score: Score | None = None) -> Commit:
    """The commit, its partitions reporting these metrics."""
    updates = {p: replace(commit.updates[p], metrics=told) for p, told in enumerate(metrics)}
    return replace(commit, updates=updates, score=score)


@pytest.fixture
def late(tiny) -> RoundStore:
    """Round 1 reports a, round 2 also b c of one partition, round 3 nothing; rounds 2 and 3 are scored.

    Partition 1 is refused in round 2.
    """
    store = tiny.create(rounds=3)
    store.commit(reporting(tiny.write(store, 1), {"a": 1.0}, {"a": 2.0}))
    told = {"a": 3.0}, {"a": 4.0, "b c": 5.0}
    store.commit(reporting(tiny.write(store, 2, refused=(1,)), *told, score=Score(0.5, {"f1": 0.25}, 8)))
    store.commit(reporting(tiny.write(store, 3), {}, {}, score=Score(0.25, {}, 8)))
    store.numbers.catch_up()
    return store


WANTED = {
    "metrics/a": [[NAN, NAN], [1, 2], [3, 4], [NAN, NAN]],
    "metrics/b c": [[NAN, NAN], [NAN, NAN], [NAN, 5], [NAN, NAN]],
    "scores/loss": [NAN, NAN, 0.5, 0.25],
    "scores/f1": [NAN, NAN, 0.25, NAN],
    "bookkeeping/weight": [[NAN, NAN], [10, 11], [10, 11], [10, 11]],
    "bookkeeping/accepted": [[NAN, NAN], [1, 1], [1, 0], [1, 1]],
    "bookkeeping/map_seconds": [[NAN, NAN], [0.5, 1.5], [0.5, 1.5], [0.5, 1.5]],
    "bookkeeping/seconds": [0, 2, 2, 2],
}


def numbers(store: RoundStore, path: str) -> np.ndarray:
    """The numbers as zarr has them."""
    return zarr.open_array(store.path / path, mode="r")[...]


def test_plain_readers_see_what_is_reported_from_the_round_that_reports_it_first(late) -> None:
    for group, names in (("metrics", ["a", "b c"]), ("scores", ["f1", "loss"])):
        assert [name for name in late.place.names(group) if name != "zarr.json"] == names
    with xr.open_datatree(late.path, engine="zarr", consolidated=False) as tree:
        for path, wanted in WANTED.items():
            np.testing.assert_array_equal(numbers(late, path), wanted)
            np.testing.assert_array_equal(tree[path].values, wanted)
            assert tree[path].dims == ("round", "partition")[: np.ndim(wanted)]
        assert tree["metrics"]["round"].values.tolist() == [0, 1, 2, 3]


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


def test_what_is_no_name_of_a_metric() -> None:
    for name in ("", ".", "..", ".a", "a/b", "../a", "a\\b", "a\n", "a\0", "ä", "x" * 101, None, 3, b"a", *TAKEN):
        problem = metric_problem(name)
        assert problem and "\n" not in problem


@pytest.mark.parametrize("name", ["../../out", "round", "a/b", "loss"])
def test_a_name_that_is_none_is_refused_before_the_round_exists(tiny, name) -> None:
    store = tiny.create()
    commit = tiny.write(store, 1)
    scored = replace(commit, score=Score(1.0, {name: 1.0}))
    for refused in (scored, *[reporting(commit, {name: 1.0}, {})] * (name != "loss")):
        with pytest.raises(UsageError):
            store.commit(refused)
    assert store.log.rounds() == [0]
    store.commit(commit)


@given(st.lists(st.from_regex(r"[A-Za-z0-9_@ -][A-Za-z0-9_.@ -]{0,99}", fullmatch=True), max_size=4, unique=True))
@settings(max_examples=2)
def test_any_names_open_in_xarray(tiny_in, tmp_path_factory, names) -> None:
    names = [*names, "a", "Top-5 acc", "p@1", "a.b", "_", "-", "0", "x" * 100, "zarr"]
    told = {name: 1.5 for name in names if metric_problem(name) is None and name != "loss"}
    tiny = tiny_in(tmp_path_factory.mktemp("named"))
    store = tiny.create()
    store.commit(reporting(tiny.write(store, 1), told, {}, score=Score(1.0, told)))
    store.numbers.catch_up()
    with xr.open_datatree(store.path, engine="zarr", consolidated=False) as tree:
        for name, number in told.items():
            np.testing.assert_array_equal(tree["metrics"].ds[name][1], [number, NAN])
            assert tree["scores"].ds[name][1] == number
