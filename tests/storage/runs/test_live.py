"""A run that is written at this moment: what a notebook sees of it is whole."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.storage.values.digests import state_digest, tensor_digests

ROUNDS = 25


@pytest.fixture
def writer(tiny) -> Iterator[Callable[[], None]]:
    """Another thread writes a round whenever this is called, and the others as fast as it can after the third."""
    store, asked, done = tiny.create("live", rounds=ROUNDS), queue.Queue(), queue.Queue()

    def write() -> None:
        with hold_lease(store.place, "writer"):
            done.put(0)
            for round in range(1, ROUNDS + 1):
                if round <= 3:
                    asked.get()
                store.commit(tiny.write(store, round))
                done.put(round)

    def go_on() -> None:
        asked.put(None)
        done.get()

    thread = threading.Thread(target=write)
    thread.start()
    done.get()
    yield go_on
    thread.join()


def assert_whole(tiny, run: StoredRun, seen: int) -> None:
    """All that is shown up to a round is of one moment, and is what was written."""
    assert len(run.history()) == len(run["fc.weight"]) == len(run.ds["round"]) == seen + 1
    assert run.history()["loss"][1:].tolist() == [1 / round for round in range(1, seen + 1)]
    last = run.round(-1)
    assert last.number == seen
    digests = tensor_digests(tiny.state(seen).named(tiny.schema.layout))
    assert run.digest == state_digest(digests, seen)
    assert tensor_digests(last.state.named(tiny.schema.layout)) == digests
    repr(run), str(run)


def test_a_refreshed_view_follows_a_running_writer(tiny, writer) -> None:
    run = open_stored("live")
    for round in range(3):
        assert (run.refresh().done, run.status, run.rounds) == (round, "running", ROUNDS)
        assert_whole(tiny, run, round)
        writer()
        assert run.done == round
    seen = [3]
    while seen[-1] < ROUNDS:
        seen.append(run.refresh().done)
        assert_whole(tiny, run, seen[-1])
    assert seen == sorted(seen)
    while run.refresh().status == "running":
        pass
    assert run.status == "complete"
