"""Going on after a place failed: what was committed stays, what was not is done again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr

from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds import recovery
from roundweave.storage.rounds.recovery import recover
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun


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
        failing.numbers.catch_up()
    for _ in range(2):
        history = StoredRun(store.path).history()
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


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["metrics/train_loss/c/0/0", "committed/c/0", "scores/loss/c/0"])
@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_numbers_that_are_damaged_while_a_run_goes_on_are_written_anew(tiny, flip, path, damage) -> None:
    store = tiny.train(tiny.create(), 2)
    (store.path / path).unlink() if damage == "missing" else flip(store.path / path)
    store.commit(tiny.write(store, 3))
    store.numbers.catch_up()
    whole = tiny.train(tiny.create("whole"), 3)
    assert (store.path / path).read_bytes() == (whole.path / path).read_bytes()


@pytest.mark.parametrize(
    ("damage", "at_once"), [(Path.unlink, 1 << 22), (lambda path: path.write_bytes(path.read_bytes()[:-5]), 1)]
)
def test_a_state_is_checked_row_by_row_as_whole(tiny, monkeypatch, damage, at_once) -> None:
    monkeypatch.setattr(recovery, "AT_ONCE", at_once)
    store = tiny.train(tiny.create(), 2)
    for path in tiny.schema.state(1):
        if not path.startswith("frozen/"):  # which is of all rounds
            row = store.path / path / "c/2"
            (chunk,) = (each for each in (row, *row.rglob("*")) if each.is_file())
            damage(chunk)
            assert recover(store) == (1, [2])
            store.commit(tiny.write(store, 2))
            assert recover(store) == (2, [])


@pytest.mark.parametrize("prefix", ["zarr.json", "params/fc.weight/zarr.json", "frozen", "commits/0.json"])
def test_a_run_that_could_not_be_made_is_not_there(tiny, prefix) -> None:
    place = Full(tiny.folder / "full.zarr", prefix)
    with pytest.raises(OSError, match="no space left"):
        RoundStore.create(place, tiny.schema, 3, {}, tiny.state(0))
    assert list(tiny.folder.iterdir()) == []
