"""The commit record is created once; a later or another writer is told so."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.flows.stored import Run
from roundweave.storage.errors import RoundMissing, StoreDamaged, WriterFenced
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.commits import Commit, Score, SplitRecord, UpdateRecord
from roundweave.storage.rounds.log import CommitLog, Link
from roundweave.storage.values.state import Layout
from roundweave.storage.values.tensors import TensorSpec

SCHEMA = Schema(Layout((TensorSpec("w", "float32", ()),)), partitions=3)
TEXT, COUNT, FINITE = st.text(max_size=8), st.integers(0, 10**6), st.floats(allow_nan=False)
NUMBERS, MAYBE = st.dictionaries(TEXT, FINITE, max_size=2), st.none() | TEXT
RECORDS = st.builds(UpdateRecord, TEXT, COUNT, MAYBE, NUMBERS, FINITE, TEXT)
REST = {"since_best": COUNT, "stop": MAYBE, "seconds": FINITE, "time": st.floats(0, 8e9)}
REST |= {"split": st.none() | st.builds(SplitRecord, COUNT, COUNT, TEXT), "best": st.none() | FINITE}
REST |= {"score": st.none() | st.builds(Score, FINITE, NUMBERS, COUNT)}
COMMITS = st.builds(
    Commit,
    *(COUNT, TEXT, st.integers(1, 99), TEXT, st.dictionaries(TEXT, TEXT, max_size=3)),
    *(st.dictionaries(COUNT, RECORDS, max_size=3), st.dictionaries(COUNT, COUNT, max_size=3)),
    **REST | dict.fromkeys(("updates_stored", "stored"), st.booleans()),
)


def commit_of(round: int = 1, token: str = "first", epoch: int = 1, state: str = "abc") -> Commit:
    updates = {0: UpdateRecord("d0", 5), 1: UpdateRecord("d1", 6, "not sound"), 2: UpdateRecord("d2", 7)}
    return Commit(round, token, epoch, state, {"params/w": "t"}, updates, {0: round, 2: round})


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return CommitLog(LocalPlace(tmp_path), "run", SCHEMA)


@given(COMMITS)
@settings(max_examples=50)
def test_a_record_comes_back_from_json(commit: Commit) -> None:
    assert Commit.from_json(commit.to_json()) == commit


def test_a_score_has_numbers_by_name() -> None:
    score = Score(0.5, {"accuracy": 0.25, "f1": 0.75}, 8)
    assert (score.accuracy, Score(0.5).accuracy, Score(0.5).values) == (0.25, None, {})
    assert score.row() == {"loss": 0.5, "accuracy": 0.25, "f1": 0.75, "examples": 8}


def test_the_log_knows_the_rounds_that_were_created(log) -> None:
    assert log.rounds() == []
    for round in (0, 10, 9):
        log.create(commit_of(round))
    assert log.rounds() == [0, 9, 10]
    assert (log.has(9), log.has(8)) == (True, False)
    assert log.read(10) == commit_of(10)


def test_a_round_that_is_not_there_is_named_with_those_that_are(log) -> None:
    with pytest.raises(RoundMissing, match=r"no committed round 3 in .*; it has none"):
        log.read(3)
    for round in (0, 1, 2):
        log.create(commit_of(round))
    with pytest.raises(KeyError, match="it has rounds 0 to 2"):
        log.read(3)


@pytest.mark.parametrize("again", [{"seconds": 2.0, "time": 6.0}, {"token": "resumed", "epoch": 2}], ids=str)
def test_an_equal_record_is_taken_as_the_first(log, again) -> None:
    first = log.create(commit_of())
    assert log.create(replace(commit_of(), **again)) == first == log.read(1)


def test_a_record_of_a_later_writer_stops_this_one(log) -> None:
    log.create(commit_of(token="resumed", epoch=2))
    with pytest.raises(WriterFenced, match=r"round 1 .* by another writer \(resumed\); this one stops"):
        log.create(commit_of(token="killed", epoch=1))


@pytest.mark.parametrize(
    "change",
    [
        *({"state": "other"}, {"tensors": {"params/w": "u"}}, {"updates": {0: UpdateRecord("d0", 5)}}),
        *(
            {"updates": commit_of().updates | {0: other}}
            for other in (UpdateRecord("other", 5), UpdateRecord("d0", 6), UpdateRecord("d0", 5, "refused"))
        ),
        *({"carry_from": {0: 1}}, {"split": SplitRecord(0, 10, "other")}),
    ],
    ids=str,
)
def test_a_record_of_other_work_stops_its_writer_and_stays_until_a_later_one_replaces_it(log, change) -> None:
    first = log.create(commit_of(epoch=3))
    for epoch in (2, 3):
        with pytest.raises(WriterFenced):
            log.create(replace(commit_of(epoch=epoch), **change))
        assert log.read(1) == first
    later = replace(commit_of(epoch=4), **change)
    assert log.create(later) == later == log.read(1)


def test_records_quarantined_leave_the_log_and_stay_on_the_disk(log) -> None:
    for round in range(4):
        log.create(commit_of(round))
    folder = Path(str(log.place), "commits")
    kept = (folder / "3.json").read_text()
    assert log.unfit(1) == [2, 3]
    log.quarantine([2, 3])
    assert log.rounds() == [0, 1]
    assert [path.read_text() for path in folder.glob("damaged-3-*.json")] == [kept]
    log.create(commit_of(2, state="new"))
    log.quarantine(log.unfit(1))
    assert len(list(folder.glob("damaged-2-*.json"))) == 2


@pytest.mark.parametrize(
    "given",
    [
        *(b"null", b"[]", b"{}", b'"text"', b"1", b'{"updates": []}', b'{"updates": {"a": {}}}', b"\xff\xfe\0"),
        *(commit_of().to_json()[:cut].encode() for cut in (0, 1, 50, 200, -1)),
    ],
)
def test_what_is_no_record_is_damaged(log, given) -> None:
    log.place.write("commits/1.json", given)
    with pytest.raises(StoreDamaged, match=r"1\.json is no commit record"):
        log.read(1)


@given(COMMITS)
@settings(max_examples=30)
def test_a_text_tells_what_was_stored_as_the_record_does(commit: Commit) -> None:
    link = Link(commit.to_json(), "", "")
    assert (link.stored, link.updates_stored) == (commit.stored, commit.updates_stored)
    sets = {partition for partition, round in commit.carry_from.items() if round == commit.round}
    assert all(commit.has_update(p) == (commit.updates_stored or p in sets) for p in commit.updates)


def test_a_record_of_before_updates_could_be_left_out_says_that_they_were_stored() -> None:
    text = commit_of().to_json().replace('"updates_stored": true, ', "")
    assert "updates_stored" not in text
    assert Commit.from_json(text) == commit_of()


def test_a_metric_that_is_not_finite_is_in_the_record_and_the_history(tiny) -> None:
    store = tiny.create()
    commit = tiny.write(store, 1, score=Score(math.nan, {"accuracy": 0.5}, 8, 8))
    told = {"low": -math.inf, "none": math.nan, "high": math.inf}
    commit = replace(commit, updates={0: replace(commit.updates[0], metrics=told)})
    read = Commit.from_json(commit.to_json())
    assert read.updates[0].metrics == pytest.approx(told, nan_ok=True)
    assert math.isnan(read.score.loss)
    store.commit(commit)
    row = Run(store.path).history().loc[1]
    assert row[["low", "high", "left_out"]].tolist() == [-math.inf, math.inf, 8]
