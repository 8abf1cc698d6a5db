"""What a run in a bucket costs in requests, which are what takes time where it is far away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roundweave.storage.places.base import beside, together
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from tests.storage.places.far_away import far_away

ATTRIBUTES = {"config": {"algorithm": {"name": "fed_avg"}}, "created": 1.0}


@pytest.fixture
def proxy(s3, monkeypatch):
    """A proxy of the server that counts the requests of this test."""
    with far_away(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        yield proxy


@pytest.mark.thorough
def test_opening_hundreds_of_rounds_and_their_history_takes_twenty_requests(tiny, s3, proxy) -> None:
    store = tiny.create(rounds=200)
    commit = tiny.write(store, 1)
    for round in range(1, 201):
        store.commit(replace(commit, round=round, seconds=float(round)))
    store.numbers.catch_up()
    store.numbers.seal(200)
    source, place = LocalPlace(store.path), place_of(f"{s3.bucket()}/a.zarr")
    keys = [key for key in source.sizes() if not key.startswith(("params", "updates", "memory", "carry"))]
    together(place, lambda key: place.write(key, source.read(key)), keys)
    before = proxy.requests
    run = StoredRun(place)
    history = run.history()
    assert (run.status, run.done, run.rounds) == ("complete", 200, 200)
    assert proxy.requests - before <= 20
    assert history.index.tolist() == list(range(201))
    assert history["seconds"].tolist()[1:] == [float(round) for round in range(1, 201)]
    assert history.equals(StoredRun(store.path).history())


@pytest.mark.thorough
def test_a_round_reads_back_nothing_but_the_record_before(tiny, s3, proxy) -> None:
    store = RoundStore.create(f"{s3.bucket()}/a.zarr", tiny.schema, 5, ATTRIBUTES, tiny.state(0))
    for round in (1, 2, 3):
        before = proxy.requests
        store.commit(tiny.write(store, round))
        requests = proxy.requests - before
    assert requests <= len(store.tensors.arrays) * 3 + 2


def test_what_fails_beside_is_told_at_the_end(s3) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    for place in (place_of(s3.bucket()), place_of("here")):
        with pytest.raises(ZeroDivisionError), beside(place, 1) as call:
            call(fail)


def test_together_keeps_the_order(s3) -> None:
    for place in (place_of(s3.bucket()), place_of("here")):
        assert together(place, lambda number: number * number, range(40)) == [n * n for n in range(40)]
