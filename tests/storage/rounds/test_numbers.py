"""Numbers are those of the records, whatever becomes of the arrays that have copies of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.hierarchy.zarr_format import read_chunk, replace_documents, write_chunk
from roundweave.storage.rounds.commits import Commit, Score, UpdateRecord, numbers_of
from roundweave.storage.rounds.numbers import KEY, read_copied
from roundweave.storage.rounds.recovery import recover
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.hashing import json_digest

NUMBERS = st.floats(allow_nan=False, width=64)
REPORTS = st.dictionaries(st.sampled_from(["a", "b c", "seconds"]), NUMBERS, max_size=2)


@given(st.dictionaries(st.integers(0, 4), REPORTS), st.one_of(st.none(), NUMBERS), NUMBERS)
def test_a_record_tells_its_numbers_by_their_arrays(reports, loss, seconds) -> None:
    updates = {p: UpdateRecord("", 3, None, metrics, seconds=1.5) for p, metrics in reports.items()}
    score = None if loss is None else Score(loss, {"f1": loss})
    commit = Commit(1, "writer", 0, "", {}, updates, score=score, seconds=seconds)
    wanted = {"bookkeeping/seconds": seconds}
    wanted |= {} if loss is None else {"scores/loss": loss, "scores/f1": loss}
    if reports:
        numbers = {"weight": 3, "accepted": True, "map_seconds": 1.5}
        wanted |= {f"bookkeeping/{name}": dict.fromkeys(reports, number) for name, number in numbers.items()}
    for name in {name for metrics in reports.values() for name in metrics}:
        wanted[f"metrics/{name}"] = {p: metrics[name] for p, metrics in reports.items() if name in metrics}
    assert numbers_of(Commit.from_json(commit.to_json())) == wanted


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


def test_rounds_after_the_copied_ones_are_read_from_their_records(tiny, copied) -> None:
    copied.commit(tiny.write(copied, 4))
    run, whole = StoredRun(copied.path), tiny.train(tiny.create("whole"), 3)
    assert run.history()["loss"].tolist()[1:] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert run.ds["train_loss"].values[-1].tolist() == [4, 5]
    copied.numbers.catch_up()
    assert run.refresh().history()["loss"][4] == 1 / 4
    copied.place.delete(KEY)
    assert run.refresh().history().loc[:3].equals(StoredRun(whole.path).history())


def said(**value: object) -> str:
    """What says up to which round numbers are copied, as anybody can write it."""
    return json.dumps(value | {"digest": json_digest(value)})


def flipped(key: str) -> Callable[[RoundStore], None]:
    def flip(store: RoundStore) -> None:
        content = bytearray((store.path / key).read_bytes())
        content[0] ^= 1
        (store.path / key).write_bytes(content)

    return flip


FLIPPED = ("scores/loss/c/0", "bookkeeping/weight/c/0/0", "metrics/train_loss/c/0/0", "committed/c/0", "round/c/0")
DAMAGE: dict[str, Callable[[RoundStore], object]] = {
    **{f"a bit of {key} is flipped": flipped(key) for key in FLIPPED},
    "a chunk is missing": lambda store: (store.path / "scores/loss/c/0").unlink(),
    "a metric is missing": lambda store: shutil.rmtree(store.path / "metrics"),
    "that rounds are committed is missing": lambda store: (store.path / "committed/c/0").unlink(),
    "a chunk is empty": lambda store: (store.path / "bookkeeping/weight/c/0/0").write_bytes(b""),
    "what says so is empty": lambda store: (store.path / KEY).write_bytes(b""),
    "what says so is of another history": lambda store: (store.path / KEY).write_text(
        (store.path / KEY).read_text().replace(read_copied(store.log).chain, "0" * 64)
    ),
    "what says so leads elsewhere": lambda store: (store.path / KEY).write_text(
        said(round=3, chain=store.log.chain(3), since={"../../metrics/x": 0})
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_missing_or_damaged_is_read_from_the_records_and_made_anew(copied, damage) -> None:
    told = StoredRun(copied.path).history()
    damage(copied)
    assert same(copied, told)
    assert not StoredRun(copied.path).verify().sound
    assert recover(RoundStore(copied.path)) == (3, [])
    assert same(copied, told)
    assert StoredRun(copied.path).verify().findings == ()


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


EDITS: dict[str, Callable[[RoundStore], None]] = {
    "a loss": lambda store: edit(store, "scores/loss", 1, 0.125),
    "the last accuracy": lambda store: edit(store, "scores/accuracy", 3, 0.5),
    "a loss of the start": lambda store: edit(store, "scores/loss", 0, 9.0),
    "a metric": lambda store: edit(store, "metrics/train_loss", 2, 0.0),
    "a result": lambda store: edit(store, "bookkeeping/accepted", 2, 0.0),
    "a number that is gone": lambda store: edit(store, "metrics/train_loss", 2, np.nan),
    "a metric that nobody reported": add_metric,
    "what is said to be copied": lambda store: store.place.write(
        KEY, said(round=3, chain=store.log.chain(3), since={"scores/loss": 9}).encode()
    ),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_numbers_that_were_edited_are_found_and_made_anew(copied, change) -> None:
    told = StoredRun(copied.path).history()
    change(copied)
    assert not StoredRun(copied.path).verify().sound
    assert recover(RoundStore(copied.path)) == (3, [])
    assert same(copied, told)


@pytest.mark.parametrize("lost", [(2,), (2, 4), (1, 2, 3)])
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


@settings(max_examples=20)
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
