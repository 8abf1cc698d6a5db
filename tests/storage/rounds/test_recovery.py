"""Going on after a place failed: what was committed stays, what was not is done again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.errors import UsageError
from storage.places.local import LocalPlace
from storage.rounds.recovery import recover
from storage.rounds.store import RoundStore
from storage.runs.run import Run


@dataclass(frozen=True)
class Full(LocalPlace):
    """A disk that has no space left for keys that begin so."""

    prefix: str = "nothing"

    def write(self, key: str, *pieces: bytes | memoryview, durable: bool = False) -> None:
        self._check(key)
        super().write(key, *pieces, durable=durable)

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
    assert same(store.read_state(1), tiny.state(1))
    assert recover(store) == (1, [])


@pytest.mark.parametrize("prefix", ["metrics/train_loss/zarr.json", "scores/loss/c", "committed/c", "bookkeeping"])
def test_numbers_that_could_not_be_written_are_made_from_the_commit(tiny, prefix) -> None:
    store = tiny.create()
    failing = RoundStore(Full(store.path, prefix))
    with pytest.raises(OSError, match="no space left"):
        failing.commit(tiny.write(failing, 1))
    assert recover(RoundStore(store.place)) == (1, [])
    history = Run(store.path).history()
    assert history.loc[1, ["loss", "accuracy", "accepted", "seconds"]].tolist() == [1.0, 0.25, 2, 2.0]
    assert history.loc[1, "train_loss"] == (10 * 1 + 11 * 2) / 21


@pytest.mark.parametrize("prefix", ["zarr.json", "params/fc.weight/zarr.json", "frozen", "commits/0.json"])
def test_a_run_that_could_not_be_made_is_not_there(tiny, prefix) -> None:
    place = Full(tiny.folder / "full.zarr", prefix)
    with pytest.raises(OSError, match="no space left"):
        RoundStore.create(place, tiny.schema, 3, {}, tiny.state(0))
    assert list(tiny.folder.iterdir()) == []


def test_a_store_has_no_place_of_an_unknown_scheme(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for where in ("s3://bucket/a.zarr", Path("s3://bucket/a.zarr")):
        with pytest.raises(UsageError, match="there are no places of scheme s3://"):
            RoundStore(where)
        with pytest.raises(UsageError, match="there are no places of scheme s3://"):
            RoundStore.create(where, tiny.schema, 3, {}, tiny.state(0))
    assert list(tmp_path.iterdir()) == []
