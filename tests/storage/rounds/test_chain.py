"""The chain of commit records: what was changed, exchanged or lost is seen; the run goes on from what is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.flows.stored import Run
from roundweave.storage.errors import RoundMissing, StoreDamaged
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep import recovery
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.upkeep.verifying.verify import verify
from tests.storage.conftest import thorough


def record(store: RoundStore, round: int):
    return store.path / "commits" / f"{round}.json"


@pytest.mark.parametrize("value", ['"created": 2.0', '"created": 1'])
def test_attributes_that_were_changed_are_refused_while_one_record_is_left(tiny, value) -> None:
    store = tiny.train(tiny.create(), 2)
    path = store.path / "zarr.json"
    path.write_text(path.read_text().replace('"created": 1.0', value))
    for _ in range(2):
        for opened in (RoundStore, Run):
            with pytest.raises(StoreDamaged, match=r"attributes in zarr\.json; one or the other was changed"):
                opened(store.path)
        for round in (0, 2):
            record(store, round).write_text("")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(('"round": 2', '"round": 1'), ('"loss": 0.5', '"loss": 0.4'), ('"best": null', '"best": 0.1')),
        *(('"weight": 10', '"weight": 11'), ('"refused": null', '"refused": "x"'), ("{", "{ ")),
        *(('"stop": null', '"stop": "x"'), ('"before": "', '"before": "0')),
    ],
    ids=lambda text: re.sub(r"\W+", " ", text),
)
def test_a_record_of_which_anything_was_changed_is_refused(tiny, old, new) -> None:
    store = tiny.train(tiny.create(), 2)
    text = record(store, 2).read_text()
    assert old in text
    record(store, 2).write_text(text.replace(old, new, 1))
    with pytest.raises(StoreDamaged, match=r"2\.json is no commit record, or not the one that was written"):
        store.log.read(2)
    run = Run(store.path)
    assert (run.done, run.committed, run.lost) == (1, [0, 1], [2])


def test_a_record_of_another_round_or_run_is_refused(tiny) -> None:
    store, other = (tiny.train(tiny.create(name, created=float(n)), 3) for n, name in enumerate("ab"))
    for taken in (record(store, 3), record(other, 2)):
        record(store, 2).write_text(taken.read_text())
        for read in (store.log.read, store.tensors.read_state, Run(store.path).round):
            with pytest.raises(StoreDamaged, match=r"commits/2\.json"):
                read(2)


def test_a_record_that_the_next_one_did_not_follow_is_lost(tiny) -> None:
    """A sound record of the same round of the same run, as from an older copy in which the round was done anew."""
    store = tiny.train(tiny.create(), 1)
    other = replace(tiny.write(store, 2), token="another")
    store.log.create(other)
    kept = record(store, 2).read_text()
    record(store, 2).unlink()
    tiny.train(store, 3)
    record(store, 2).write_text(kept)
    assert store.log.read(2) == other
    assert (Run(store.path).committed, Run(store.path).lost) == ([0, 1, 3], [2])
    assert recover(store) == (3, [2])


def test_a_chain_goes_on_over_a_round_that_was_lost(tiny) -> None:
    store = tiny.train(tiny.create(rounds=5), 3)
    record(store, 2).unlink()
    assert recover(store) == (3, [])
    store.commit(tiny.write(store, 4))
    record(store, 4).unlink()
    store = RoundStore(store.path)  # who wrote it would go on from what it wrote
    store.commit(tiny.write(store, 5))
    chains = {round: json.loads(record(store, round).read_text()) for round in (3, 5)}
    assert chains[5]["before"] == chains[3]["chain"]
    assert Run(store.path).lost == [2, 4]


def test_a_lost_round_is_named_and_the_run_goes_on(tiny, same) -> None:
    store = tiny.train(tiny.create(rounds=6), 5)
    record(store, 2).unlink()
    record(store, 3).write_text("")
    run = Run(store.path)
    assert (run.done, run.committed, run.lost) == (5, [0, 1, 4, 5], [2, 3])
    assert run.history().index.tolist() == run["scale"]["round"].values.tolist() == [0, 1, 4, 5]
    with pytest.raises(RoundMissing, match=r"commits/2\.json is missing, and the round is lost"):
        run.round(2)
    with pytest.raises(StoreDamaged, match=r"commits/3\.json is no commit record"):
        run.round(3)
    record(store, 3).write_text("{}")  # not as a power loss leaves it, which has what follows done again
    assert recover(store) == (5, [3])
    store.commit(tiny.write(store, 6))
    run = Run(store.path)
    assert (run.status, run.lost, run.damaged) == ("complete", [2, 3], [])
    assert same(run.round(6).state, tiny.state(6))


def test_a_round_whose_carries_are_of_a_lost_round_is_not_gone_on_from(tiny) -> None:
    store = tiny.create()
    for round in (1, 2, 3):
        store.commit(tiny.write(store, round, carry_from={0: min(round, 2), 1: round}))
    record(store, 2).unlink()
    assert recover(store) == (1, [3])


@given(empty=st.sets(st.integers(0, 6)))
@settings(max_examples=6)
def test_a_run_of_which_some_records_are_empty_goes_on_from_before_the_first_of_them(
    tiny_in, tmp_path_factory, empty
) -> None:
    """A power loss leaves files that were not synced with their names and without their bytes.

    The initial state is synced before the run is there.
    """
    tiny = tiny_in(tmp_path_factory.mktemp("empty"))
    store = tiny.train(tiny.create(rounds=6), 6)
    for round in empty:
        record(store, round).write_bytes(b"")
    left = [round for round in range(7) if round not in empty]
    if not left:
        with pytest.raises(StoreDamaged):
            Run(store.path)
        return
    run = Run(store.path)
    assert (run.done, run.committed, run.lost) == (left[-1], left, sorted(empty))
    assert repr(run) and run.history().index.tolist() == left
    opened, last = RoundStore(store.path), min(empty - {0}, default=7) - 1
    if last == 0 in empty:
        with pytest.raises(StoreDamaged, match="no round is whole"):
            recover(opened)
        return
    assert recover(opened) == (last, sorted({*empty, *range(last + 1, 7)}))
    for round in range(last + 1, 7):
        opened.commit(tiny.write(opened, round))
    assert (Run(store.path).done, Run(store.path).lost) == (6, sorted(empty & {0}))


def test_records_that_processes_write_by_turns_are_one_chain_and_history(tiny) -> None:
    """Who goes on after another one's record does not follow its own, nor what it remembers of numbers."""
    stores = [tiny.create(rounds=6), RoundStore(tiny.folder / "tiny.zarr"), RoundStore(tiny.folder / "tiny.zarr")]
    for round, writer in enumerate((1, 1, 2, 1, 2, 2), 1):
        stores[writer].commit(tiny.write(stores[writer], round))
        stores[writer].show()
    links = RoundStore(stores[0].path).log.links(range(7))
    assert [link.before for link in links.values()] == ["", *(link.chain for link in links.values())][:7]
    assert [*links] == [*range(7)]
    assert Run(stores[0].path).history()["loss"].tolist()[1:] == [1 / round for round in range(1, 7)]
    assert verify(stores[0].path).sound


# After a place failed what was committed stays, and what was not is done again.


@dataclass(frozen=True)
class Full(LocalPlace):
    """A disk that has no space left for keys that begin so."""

    prefix: str = "nothing"

    def stream(self, key: str, pieces: Iterable[bytes | memoryview], durable: bool = False) -> None:
        self._check(key)
        super().stream(key, pieces, durable)

    def create(self, key: str, *pieces: bytes | memoryview, durable: bool = False) -> bool:
        self._check(key)
        return super().create(key, *pieces, durable=durable)

    def _check(self, key: str) -> None:
        if key.startswith(self.prefix):
            raise OSError("no space left")


@pytest.mark.parametrize("prefix", ["params/coarse/c", "updates/float32/c/1/1", "commits/1.json"])
def test_a_round_that_could_not_be_written_does_not_exist_and_is_done_again(tiny, same, prefix) -> None:
    store = tiny.create()
    failing = RoundStore(Full(store.path, prefix))
    with pytest.raises(OSError, match="no space left"):
        failing.commit(tiny.write(failing, 1))
    assert recover(store) == (0, [])
    store.commit(tiny.write(store, 1))
    assert same(store.tensors.read_state(1), tiny.state(1))
    assert recover(store) == (1, [])


@pytest.mark.parametrize("prefix", ["metrics/train_loss/zarr.json", "scores/loss/c", "committed/c", "bookkeeping"])
def test_numbers_that_could_not_be_written_are_those_of_the_commit(tiny, prefix) -> None:
    store = tiny.create()
    failing = RoundStore(Full(store.path, prefix))
    failing.commit(tiny.write(failing, 1))
    with pytest.raises(OSError, match="no space left"):
        failing.show()
    for _ in range(2):
        history = Run(store.path).history()
        assert history.loc[1, ["loss", "accuracy", "accepted", "seconds"]].tolist() == [1.0, 0.25, 2, 2.0]
        assert history.loc[1, "train_loss"] == (10 * 1 + 11 * 2) / 21
        assert recover(RoundStore(store.place)) == (1, [])


def test_a_split_that_could_not_be_written_is_not_there_and_is_written_then(tiny) -> None:
    """An array without its chunk would say that all examples are in partition 0."""
    store, owners = tiny.create(), np.array([1, -1], np.int32)
    for prefix in ("partitions/0/c", "partitions/0/zarr.json"):
        with pytest.raises(OSError, match="no space left"):
            RoundStore(Full(store.path, prefix)).splits.write(0, lambda number: owners)
        assert not (store.path / "partitions/0/zarr.json").exists()
    store.splits.write(0, lambda number: owners)
    assert zarr.open_array(store.path / "partitions/0", mode="r")[...].tolist() == [1, -1]


@pytest.mark.parametrize("cut", [True, *thorough(False)])
def test_a_state_is_checked_row_by_row_as_whole(tiny, monkeypatch, cut) -> None:
    """A file of each tensor is cut short, or missing; each is read alone, or all are at once."""
    monkeypatch.setattr(recovery, "AT_ONCE", 1 if cut else 1 << 22)
    store = tiny.train(tiny.create(), 2)
    for path in tiny.schema.state(1):
        if not path.startswith("frozen/"):  # which is of all rounds
            row = store.path / path / "c/2"
            (chunk,) = (each for each in (row, *row.rglob("*")) if each.is_file())
            chunk.write_bytes(chunk.read_bytes()[:-5]) if cut else chunk.unlink()
            assert recover(store) == (1, [2])
            store.commit(tiny.write(store, 2))
            assert recover(store) == (2, [])


@pytest.mark.parametrize("prefix", ["zarr.json", "params/fc.weight/zarr.json", "frozen", "commits/0.json"])
def test_a_run_that_could_not_be_made_is_not_there(tiny, prefix) -> None:
    place = Full(tiny.folder / "full.zarr", prefix)
    with pytest.raises(OSError, match="no space left"):
        RoundStore.create(place, tiny.schema, 3, {}, tiny.state(0))
    assert list(tiny.folder.iterdir()) == []
