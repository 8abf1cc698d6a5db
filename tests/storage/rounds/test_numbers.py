"""Numbers are those of the records, whatever becomes of the columns and arrays that have them too."""

from __future__ import annotations

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

from roundweave.flows.stored import Run
from roundweave.storage.errors import UsageError
from roundweave.storage.hierarchy.schema import ROWS, number_array
from roundweave.storage.hierarchy.zarr_format import read_chunk, replace_documents, write_chunk
from roundweave.storage.rounds import packs
from roundweave.storage.rounds.commits import TAKEN, Commit, Score, metric_problem
from roundweave.storage.rounds.log import CommitLog, Link
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.values.hashing import text_digest
from tests.storage.conftest import thorough


@pytest.fixture(autouse=True)
def threes(monkeypatch) -> None:
    monkeypatch.setattr(packs, "ROUNDS", 3)


@pytest.fixture
def shown(tiny) -> RoundStore:
    """A run of four rounds of room for six; rounds 0 to 2 are packed."""
    store = tiny.train(tiny.create(rounds=6), 4)
    store.log.pack(4)
    return store


def told(store: RoundStore) -> pd.DataFrame:
    return Run(store.path).history()


def flip_first(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def edit(store: RoundStore, path: str, round: int, number: float) -> None:
    """Change a number by the rules of the format, its checksum included."""
    spec = number_array(path, store.rounds + 1)
    chunk = read_chunk(store.place, spec, (0,)).copy()
    chunk[round] = number
    write_chunk(store.place, spec, (0,), chunk)


def add_metric(store: RoundStore) -> None:
    spec = number_array("metrics/invented", store.rounds + 1)
    replace_documents(store.place, [spec])
    write_chunk(store.place, spec, (0,), np.ones(spec.chunks))


def restate(store: RoundStore, old: str, new: str) -> None:
    """Change the columns of the pack by the rules of the format, their chain included."""
    line, _, rest = (store.path / PACK).read_text().partition("\n")
    text, _, before = line.removesuffix('"}').rpartition('", "chain": "')[0].rpartition(', "before": "')
    text = f"{text}}}".replace(old, new)
    chain = text_digest("\n".join((store.log.run, "0", before, text)))
    (store.path / PACK).write_text(f"{Link(text, before, chain).content}\n{rest}")


def without_columns(store: RoundStore) -> None:
    (store.path / PACK).write_text((store.path / PACK).read_text().partition("\n")[2])


PACK = "commits/0-2.jsonl"
FLIPPED = (
    "scores/loss/c/0",
    "bookkeeping/examples/c/0",
    "metrics/train_loss/c/0",
    "committed/c/0",
    "round/c/0",
    PACK,
)
DAMAGE: dict[str, Callable[[RoundStore], object]] = {
    **{f"a bit of {key} is flipped": lambda store, key=key: flip_first(store.path / key) for key in FLIPPED},
    "a chunk is missing": lambda store: store.place.delete("scores/loss/c/0"),
    "a metric is missing": lambda store: store.place.delete("metrics"),
    "that rounds are committed is missing": lambda store: store.place.delete("committed/c/0"),
    "a chunk is empty": lambda store: store.place.write("bookkeeping/examples/c/0", b""),
    "columns are missing": without_columns,
    "columns are too short": lambda store: restate(store, ", 0.5]", "]"),
    "columns lead elsewhere": lambda store: restate(store, "scores/loss", "../../metrics/x"),
    "a loss": lambda store: edit(store, "scores/loss", 1, 0.125),
    "the last accuracy": lambda store: edit(store, "scores/accuracy", 4, 0.5),
    "a metric that nobody reported": add_metric,
    "a loss of the start": lambda store: edit(store, "scores/loss", 0, 9.0),
    "a number that is gone": lambda store: edit(store, "metrics/train_loss", 2, np.nan),
}
EDITED = "a loss in the columns of a pack"
"""Is told by a reader who does not verify."""
HARM = [*DAMAGE, EDITED]


@pytest.mark.parametrize("harm", [HARM[0], *thorough(*HARM[1:5]), *HARM[5:12], *thorough(*HARM[12:17]), EDITED])
def test_what_is_missing_damaged_or_edited_is_found_and_made_anew_from_the_records(shown, harm) -> None:
    before = told(shown)
    DAMAGE.get(harm, lambda store: restate(store, "1.0, 0.5]", "1.0, 0.125]"))(shown)
    assert told(shown).equals(before) == (harm != EDITED)
    assert not Run(shown.path).verify().sound
    store = RoundStore(shown.path)
    assert recover(store) == (4, [])
    store.log.pack(4)
    assert told(shown).equals(before)
    assert store.place.has(PACK)
    assert Run(shown.path).verify().findings == ()


def test_a_history_of_columns_is_that_of_the_records_which_are_not_looked_at(shown, monkeypatch) -> None:
    parsed, log = [], CommitLog.parsed
    monkeypatch.setattr(CommitLog, "parsed", lambda at, round, link: parsed.append(round) or log(at, round, link))
    before = told(shown)
    assert parsed == [3, 4]
    without_columns(shown)
    assert told(shown).equals(before)


@pytest.mark.parametrize("lost", [(2, 4), *thorough((1, 2, 3))])
def test_a_lost_round_has_no_numbers(tiny, lost) -> None:
    store = tiny.train(tiny.create(rounds=6), 6)
    before = told(store)
    for round in lost:
        (store.path / f"commits/{round}.json").unlink()
    kept = [round for round in range(7) if round not in lost]
    assert told(store).equals(before.loc[kept])
    assert recover(RoundStore(store.path)) == (6, [])
    assert told(store).equals(before.loc[kept])
    assert Run(store.path).ds["loss"].sizes["round"] == len(kept)


@settings(max_examples=8)
@given(st.lists(st.sampled_from(["commit", "show", "pack", "again"]), max_size=12))
def test_a_history_is_that_of_the_records_whatever_was_packed(tiny_in, tmp_path_factory, steps) -> None:
    tiny = tiny_in(tmp_path_factory.mktemp("packed"))
    packs.ROUNDS = 3  # hypothesis runs all examples within one call of the fixture
    store, done = tiny.train(tiny.create(rounds=13), 1), 1
    for step in steps:
        if step == "commit":
            done += 1
            store.commit(tiny.write(store, done))
        elif step == "show":
            store.show()
        elif step == "pack":
            store.log.pack(done)
        else:
            store = RoundStore(store.path)
            recover(store)
    history = told(store)
    assert history["loss"].tolist()[1:] == [1 / round for round in range(1, done + 1)]
    assert history["train_loss"].tolist()[1:] == [(10 * r + 11 * (r + 1)) / 21 for r in range(1, done + 1)]
    assert Run(store.path).verify().findings == ()


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
    store.show()
    return store


WANTED = {
    "metrics/a": [NAN, (10 + 22) / 21, 3, NAN],
    "metrics/b c": [NAN, NAN, NAN, NAN],
    "scores/loss": [NAN, NAN, 0.5, 0.25],
    "scores/f1": [NAN, NAN, 0.25, NAN],
    "bookkeeping/examples": [0, 21, 10, 21],
    "bookkeeping/accepted": [0, 2, 1, 2],
    "bookkeeping/refused": [0, 0, 1, 0],
    "bookkeeping/absent": [0, 0, 0, 0],
    "bookkeeping/seconds": [0, 2, 2, 2],
}
OF_PARTITIONS = {
    "metrics/a": [[NAN, NAN], [1, 2], [3, 4], [NAN, NAN]],
    "metrics/b c": [[NAN, NAN], [NAN, NAN], [NAN, 5], [NAN, NAN]],
    "bookkeeping/weight": [[NAN, NAN], [10, 11], [10, 11], [10, 11]],
    "bookkeeping/accepted": [[NAN, NAN], [1, 1], [1, 0], [1, 1]],
    "bookkeeping/map_seconds": [[NAN, NAN], [0.5, 1.5], [0.5, 1.5], [0.5, 1.5]],
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
            assert tree[path].dims == ("round",)
        assert tree["metrics"]["round"].values.tolist() == [0, 1, 2, 3]
    for path, wanted in OF_PARTITIONS.items():
        np.testing.assert_array_equal(Run(late.path).tree[path].values, wanted)


def test_what_only_rounds_that_were_quarantined_reported_is_gone(tiny, late, flip) -> None:
    flip(late.path / "params/fc.weight/c/2/0/0")
    flip(late.path / "params/fc.weight/c/3/0/0")
    assert recover(late) == (1, [2, 3])
    np.testing.assert_array_equal(numbers(late, "metrics/a"), [NAN, 32 / 21, NAN, NAN])
    assert not (late.path / "metrics/b c").exists()
    assert not (late.path / "scores/loss").exists()
    assert numbers(late, "committed").tolist() == [True, True, False, False]


def test_chunks_after_the_last_whole_round_are_gone(tiny, flip) -> None:
    store = tiny.create(rounds=ROWS)
    store.commit(reporting(tiny.write(store, 1), {"a": 1.0}, {"a": 2.0}))
    store.commit(reporting(tiny.write(store, ROWS), {"a": 3.0}, {"a": 4.0}))
    store.show()
    flip(store.path / f"params/fc.weight/c/{ROWS}/0/0")
    assert recover(store) == (1, [ROWS])
    for path in ("metrics/a", "committed", "bookkeeping/seconds", "bookkeeping/examples"):
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
    store.show()
    with xr.open_datatree(store.path, engine="zarr", consolidated=False) as tree:
        for name, number in told.items():
            assert tree["metrics"].ds[name][1] == number
            assert tree["scores"].ds[name][1] == number
