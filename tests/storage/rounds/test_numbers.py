"""Numbers are served only as the records vouch for them."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import StoreDamaged
from storage.hierarchy.chunks import read_chunk, write_chunk
from storage.hierarchy.documents import create_documents
from storage.rounds.commits import Commit, Score, UpdateRecord
from storage.rounds.numbers import commit_digest, numbers_digest, rows_of
from storage.rounds.recovery import recover
from storage.rounds.store import RoundStore
from storage.runs.run import Run

NUMBERS = st.floats(width=64)
REPORTS = st.dictionaries(st.sampled_from(["a", "b c", "seconds"]), NUMBERS, max_size=2)


def test_the_digest_is_over_what_is_told() -> None:
    rows = {"metrics/b": np.array([np.nan, 2.0, 0.5]), "bookkeeping/seconds": 4.0, "scores/loss": np.nan}
    by_hand = b"before"
    by_hand += b"\nbookkeeping/seconds 1\n" + struct.pack("<q", 0) + struct.pack("<d", 4.0)
    by_hand += b"\nmetrics/b 2\n" + struct.pack("<qq", 1, 2) + struct.pack("<dd", 2.0, 0.5)
    assert numbers_digest("before", rows) == hashlib.sha256(by_hand).hexdigest()


@given(st.dictionaries(st.integers(0, 4), REPORTS), st.one_of(st.none(), NUMBERS), NUMBERS)
def test_a_record_and_its_rows_have_one_digest(reports, loss, seconds) -> None:
    updates = {p: UpdateRecord("", 3, None, metrics, seconds=1.5) for p, metrics in reports.items()}
    score = None if loss is None else Score(loss, {"f1": loss})
    commit = Commit(1, "writer", 0, "", {}, updates, score=score, seconds=seconds)
    rows = rows_of(Commit.from_json(commit.to_json()), partitions=5)
    assert rows.pop("committed") is True
    assert commit_digest("before", commit) == numbers_digest("before", rows | {"metrics/none": np.full(5, np.nan)})


def edit(store: RoundStore, path: str, round: int, number: float) -> None:
    """Change a number by the rules of the format, its checksum included."""
    spec = store.history.arrays()[path]
    chunk = read_chunk(store.place, spec, (0,)).copy()
    chunk[round] = number
    write_chunk(store.place, spec, (0,), chunk)


def add_metric(store: RoundStore) -> None:
    spec = store.schema.reported("metrics/invented", store.rounds + 1)
    create_documents(store.place, [spec])
    write_chunk(store.place, spec, (0,), np.ones(spec.chunks))


EDITS: dict[str, Callable[[RoundStore], None]] = {
    "a loss": lambda store: edit(store, "scores/loss", 1, 0.125),
    "the last accuracy": lambda store: edit(store, "scores/accuracy", 3, 0.5),
    "a loss of the start": lambda store: edit(store, "scores/loss", 0, 9.0),
    "a metric": lambda store: edit(store, "metrics/train_loss", 2, 0.0),
    "a verdict": lambda store: edit(store, "bookkeeping/accepted", 2, 0.0),
    "seconds of a map": lambda store: edit(store, "bookkeeping/map_seconds", 2, 0.0),
    "a number that is gone": lambda store: edit(store, "metrics/train_loss", 2, np.nan),
    "a metric that is gone": lambda store: shutil.rmtree(store.path / "metrics/train_loss"),
    "a metric that nobody reported": add_metric,
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_numbers_that_were_edited_are_not_served(tiny, change) -> None:
    store = tiny.train(tiny.create(), 3)
    told = Run(store.path).history()
    change(store)
    run = Run(store.path)
    for read in (run.history, run.best, lambda: run.ds, lambda: run.tree):
        with pytest.raises(
            StoreDamaged, match=r"numbers by round are not what .* tell; `roundweave verify` names"
        ):
            read()
    assert not run.verify().sound
    assert recover(RoundStore(store.path)) == (3, [])
    assert Run(store.path).history().equals(told)


def test_rows_after_the_last_record_are_nobodys(tiny) -> None:
    store = tiny.train(tiny.create(), 2)
    edit(store, "scores/loss", 3, 0.125)
    assert Run(store.path).history().index.tolist() == [0, 1, 2]


@pytest.mark.parametrize("lost", [(2,), (2, 4), (1, 2, 3)])
def test_a_lost_round_has_no_numbers_and_the_others_are_vouched_for(tiny, lost) -> None:
    store = tiny.train(tiny.create(rounds=6), 6)
    told = Run(store.path).history()
    for round in lost:
        (store.path / f"commits/{round}.json").unlink()
    kept = [round for round in range(7) if round not in lost]
    assert Run(store.path).history().equals(told.loc[kept])
    assert np.isnan(RoundStore(store.path).history.read()["scores/loss"][list(lost)]).all()
    edit(store, "scores/loss", 6, 0.125)
    with pytest.raises(StoreDamaged, match="numbers by round"):
        Run(store.path).history()


def test_a_damaged_record_is_vouched_for_by_the_next(tiny, flip) -> None:
    store = tiny.train(tiny.create(rounds=6), 6)
    told = Run(store.path).history()
    flip(store.path / "commits/3.json")
    assert Run(store.path).history().equals(told)
    edit(store, "scores/loss", 3, 0.125)
    with pytest.raises(StoreDamaged, match="numbers by round"):
        Run(store.path).history()


def test_nobody_vouches_for_a_damaged_record_before_a_lost_one(tiny, flip) -> None:
    store = tiny.train(tiny.create(rounds=6), 6)
    told = Run(store.path).history()
    flip(store.path / "commits/2.json")
    (store.path / "commits/3.json").unlink()
    numbers = RoundStore(store.path).history.read()["scores/loss"]
    assert np.isnan(numbers[[0, 2, 3]]).all()
    assert numbers[[1, 4, 5, 6]].tolist() == told["loss"][[1, 4, 5, 6]].tolist()


def test_a_record_that_vouches_for_other_numbers_is_named(tiny, monkeypatch) -> None:
    store = tiny.train(tiny.create(), 1)
    with monkeypatch.context() as forging:
        forging.setattr("storage.rounds.log.commit_digest", lambda before, commit: "0" * 64)
        store.commit(tiny.write(store, 2))
    store.commit(tiny.write(store, 3))
    run = Run(store.path)
    assert [str(finding) for finding in run.verify().findings] == ["commits/2.json: it vouches for other numbers"]
    with pytest.raises(StoreDamaged, match="numbers by round"):
        run.history()
