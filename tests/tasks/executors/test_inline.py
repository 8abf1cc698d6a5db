"""Rounds as a loop: where one takes its time to be kept, the next is computed meanwhile, and no bit changes."""

from __future__ import annotations

import threading

import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import PlaceError
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds import tensors
from tests.rows import but_first
from tests.tasks.executors.deeds import identities

FIELDS = {"model": "logistic", "partitions": 2, "rounds": 6, "name": "run"}


@pytest.fixture
def slow(monkeypatch) -> list[str]:
    """Any state counts as large; the names of the threads that create commits."""
    monkeypatch.setattr(tensors, "LARGE_STATE", 1)
    create, threads = LocalPlace.create, []

    def noted(self, key, *content, **options):
        threads.append(threading.current_thread().name)
        return create(self, key, *content, **options)

    monkeypatch.setattr(LocalPlace, "create", noted)
    return threads


@pytest.mark.parametrize("window", but_first([4], [1, 6]))
def test_rounds_that_are_kept_meanwhile_have_the_same_bits(train, tmp_path, request, window) -> None:
    plain = train(root=tmp_path / "plain", **FIELDS)
    threads = request.getfixturevalue("slow")
    run = train(root=tmp_path / "slow", window=window, **FIELDS)
    assert identities(run) == identities(plain)
    assert run.verify().sound
    assert any(name != "MainThread" for name in threads)


def test_a_run_that_stops_ends_with_that_round(train, slow) -> None:
    run = train(window=6, target_accuracy=0.01, **FIELDS)
    assert (run.committed, run.status) == ([0, 1], "complete")
    assert run.stop


def test_a_round_that_cannot_be_kept_fails_and_the_run_goes_on_from_it(train, slow, tmp_path, monkeypatch) -> None:
    plain = train(root=tmp_path / "plain", **FIELDS)
    create = LocalPlace.create

    def full(self, key, *content, **options):
        if key == "commits/3.json":
            raise PlaceError("the disk is full")
        return create(self, key, *content, **options)

    with monkeypatch.context() as filled:
        filled.setattr(LocalPlace, "create", full)
        with pytest.raises(PlaceError, match="the disk is full"):
            train(window=6, **FIELDS)
    assert Run(tmp_path / "runs/run.zarr").committed == [0, 1, 2]
    assert train(window=6, **FIELDS).digest == plain.digest
