"""Removal: all of a run goes, and half of one is none."""

from __future__ import annotations

import pytest

from roundweave.storage.errors import NotARun, RunBusy
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.removing import Eligible
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.upkeep.pruning import remove_run
from tests.storage.upkeep.dying import Dying, Killed, bury


def test_all_of_a_run_goes_and_nothing_beside_it(small) -> None:
    store, other = small.train(small.create(), 2), small.create("other")
    remove_run(store.place)
    assert [path.name for path in small.folder.iterdir()] == ["other.zarr"]
    assert StoredRun(other.path).done == 0


def test_a_run_that_is_written_is_not_removed(small) -> None:
    store = small.train(small.create(), 2)
    with hold_lease(store.place, "mine"), pytest.raises(RunBusy, match="is being written by process"):
        remove_run(store.place)
    assert StoredRun(store.path).done == 2


def test_what_a_removal_leaves_that_died_is_no_run(small) -> None:
    path = small.train(small.create(), 2).path
    for claimed_or_marked_or_deleted in (0, 1, 2):
        with pytest.raises(Killed):
            remove_run(Dying(path, claimed_or_marked_or_deleted))
        bury(path)
        assert StoredRun(path).done == 2
    with pytest.raises(Killed):
        remove_run(Dying(path, 3))
    bury(path)
    assert (path / "commits/2.json").exists()
    with pytest.raises(NotARun):
        StoredRun(path)
    [rest] = Eligible(14 * 86_400).removals(small.folder, {str(path): NotARun("it is missing")})
    assert (rest.name, rest.stays) == (path.stem, "")  # so a clean-up of what is old finishes it
    remove_run(LocalPlace(path))
    assert not path.exists()
