"""Copies: equal to the last bit, there at once or never, and of nothing that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import NotARun, PlaceTaken, RunBusy, StoreDamaged
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.copying import copy_run
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run, remove_run
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.upkeep.verifying.verify import verify
from tests.storage.conftest import contents, thorough
from tests.storage.upkeep.dying import Dying, Killed


@pytest.mark.parametrize("work", ["", "prune"])
def test_a_copy_is_the_run_and_goes_on_as_it_would(tiny, tmp_path: Path, same, work: str) -> None:
    store = tiny.train(tiny.create(rounds=4), 3)
    if "prune" in work:
        prune_run(store, Keep.of("last:2"))
    (store.path / "commits/4.json.1234.partial").write_bytes(b"half")
    target = LocalPlace(tmp_path / "elsewhere" / "copy.zarr")
    chain, copy = copy_run(store, target), RoundStore(target)
    (store.path / "commits/4.json.1234.partial").unlink()
    assert contents(target) == contents(store.place)
    assert Run(target).status == Run(store.path).status == "interrupted"
    assert (copy.log.chain(3), store.log.chain(3)) == (chain, chain)
    assert verify(target) == verify(store.path)
    assert Run(target).digest == Run(store.path).digest
    recover(copy)
    copy.commit(tiny.write(copy, 4))
    assert same(copy.tensors.read_state(4), tiny.state(4))


def test_a_place_that_is_taken_is_refused(tiny) -> None:
    store, other = tiny.train(tiny.create(), 2), tiny.create("other")
    before = contents(other.place)
    with pytest.raises(PlaceTaken, match=r"other\.zarr exists already; give the copy another place"):
        copy_run(store, other.place)
    with pytest.raises(PlaceTaken):
        copy_run(store, store.place)
    with pytest.raises(PlaceTaken, match=r"copy\.zarr lies in the run itself; give the copy another place"):
        copy_run(other, LocalPlace(other.path / "copy.zarr"))
    assert contents(other.place) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda store: copy_run(store, LocalPlace(store.path.with_name("copy.zarr"))),
        lambda store: prune_run(store, Keep.of("last:1")),
        lambda store: remove_run(store.place),
    ],
    ids=["copied", "pruned", "removed"],
)
def test_a_run_that_is_written_stays_as_it_is(tiny, act) -> None:
    store = tiny.train(tiny.create(), 2)
    with hold_lease(store.place, "mine"):
        before = contents(store.place)
        with pytest.raises(RunBusy, match=r"is being written by process \d+ on .*; wait for it"):
            act(store)
        assert contents(store.place) == before
    assert [path.name for path in store.path.parent.iterdir()] == ["tiny.zarr"]


def test_a_run_that_was_written_meanwhile_is_no_copy(tiny, tmp_path: Path, monkeypatch) -> None:
    store = tiny.train(tiny.create(), 2)
    commit, sizes = tiny.write(store, 3), LocalPlace.sizes

    def written_meanwhile(place: LocalPlace) -> dict[str, int]:
        monkeypatch.undo()
        store.commit(commit)
        return sizes(place)

    monkeypatch.setattr(LocalPlace, "sizes", written_meanwhile)
    with pytest.raises(RunBusy, match="was written while it was copied; copy it again"):
        copy_run(store, LocalPlace(tmp_path / "copy.zarr"))
    assert list(tmp_path.glob("*.zarr")) == []


@pytest.mark.parametrize("key", ["params/fc.weight/c/2/0/0", "scores/loss/c/0", *thorough("frozen/table/c/0/0")])
def test_a_flipped_bit_is_refused_by_the_name_of_the_file(tiny, tmp_path: Path, flip, key: str) -> None:
    store = tiny.train(tiny.create(), 2)
    flip(store.path / key, 1)
    with pytest.raises(StoreDamaged) as error:
        copy_run(store, LocalPlace(tmp_path / "copy.zarr"))
    what = f"{key}: the stored bytes are not those that were written; restore the file from a copy"
    assert str(error.value).startswith(f"the copy of {store.path} is not whole: {what}; `roundweave verify` lists")
    assert list(tmp_path.glob("*.zarr")) == []


def test_a_place_that_keeps_other_bytes_is_found_out(tiny, tmp_path: Path, monkeypatch) -> None:
    store, write = tiny.train(tiny.create(), 2), LocalPlace.write

    def forgetful(place: LocalPlace, key: str, *pieces: bytes, **durable: bool) -> None:
        write(place, key, *(pieces if key != "params/scale/c/1" else [b"something"]), **durable)

    monkeypatch.setattr(LocalPlace, "write", forgetful)
    with pytest.raises(StoreDamaged, match="is not whole: params/scale/c/1: "):
        copy_run(store, LocalPlace(tmp_path / "copy.zarr"))


def test_whenever_a_copy_dies_there_is_none_and_the_run_is_as_it_was(small, tmp_path: Path) -> None:
    store = small.train(small.create(rounds=1), 1)
    before, target = contents(store.place), tmp_path / "copies" / "copy.zarr"
    whole = Dying(tmp_path / "whole.zarr")
    copy_run(store, whole)
    for number in range(len(whole.calls)):
        with pytest.raises(Killed):
            copy_run(store, Dying(target, number))
        with pytest.raises(NotARun):
            Run(target)
        assert list(target.parent.iterdir()) == []
    assert contents(store.place) == before
    copy_run(store, LocalPlace(target))
