"""What a configuration says of a parameter server: each thing that does not go with one, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.storage.errors import RoundweaveError, UsageError
from roundweave.storage.places.base import full_address
from roundweave.tasks.rounds.asynchronous.orders import Recorded, Seeded

SERVER = {"algorithm": "async_sgd", "model": "logistic", "executor": "inline"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"resplit_every": 2}, "resplit_every needs rounds in which all partitions begin together; leave it out"),
        ({"quorum": 2}, "quorum 2 needs rounds of all partitions; leave it out"),
        (
            {"algorithm": "fed_buff", "buffer": 5},
            "a buffer of 5 is never full: 4 partitions have one update each in it; "
            "give a smaller buffer or more partitions",
        ),
        (
            {"algorithm": "fed_buff", "buffer": 4, "reduce": "krum:1"},
            "Krum(f=1, keep=1) needs 5 updates, and a round has 4; use more partitions, a larger buffer, or "
            "another reduce",
        ),
        (
            {"executor": "graph", "order": "seeded"},
            "on a cluster updates arrive as they do; order and speeds need executor inline",
        ),
        (
            {"executor": "graph", "speeds": "1,1,1,1"},
            "on a cluster updates arrive as they do; order and speeds need executor inline",
        ),
        ({"speeds": "1,1"}, "speeds needs 4 numbers above 0, one for each partition"),
        ({"speeds": "1,1,1,0"}, "speeds needs 4 numbers above 0, one for each partition"),
        ({"speeds": "1,1,1,nan"}, "speeds needs 4 numbers above 0, one for each partition"),
        ({"speeds": "1,1,1,inf"}, "speeds needs 4 numbers above 0, one for each partition"),
        (
            {"speeds": "1,1,1,1", "order": "recorded:other"},
            "speeds decide a seeded order, and this order is recorded; leave one of them out",
        ),
        ({"order": "sorted"}, "order = 'sorted': it takes seeded or recorded:RUN"),
        ({"order": "recorded:"}, "order = 'recorded:': it takes seeded or recorded:RUN"),
        (
            {"algorithm": "sync_sgd", "order": "seeded"},
            "order and speeds need an algorithm whose updates arrive one by one",
        ),
        (
            {"algorithm": "sync_sgd", "speeds": "1,1,1,1"},
            "order and speeds need an algorithm whose updates arrive one by one",
        ),
        (
            {"algorithm": "downpour", "fetch_every": 3, "push_every": 2},
            "fetch_every 3 is no multiple of push_every 2: a partition fetches only when it has pushed",
        ),
        ({"max_staleness": -1}, "max_staleness = -1: Input should be greater than or equal to 0"),
        ({"fetch_every": 0}, "fetch_every = 0: Input should be greater than or equal to 1"),
        ({"stale": "scaled"}, "stale = 'scaled': Input should be 'drop' or 'scale'"),
        ({"buffer": 2}, "algorithm async_sgd takes no buffer; it takes batch_size"),
    ],
)
def test_what_does_not_go_with_a_server_is_refused_in_one_line(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(TrainConfig(**SERVER | fields))
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "every"),
    [
        ({}, 40),
        ({"partitions": 3}, 30),
        ({"algorithm": "fed_buff", "buffer": 4}, 10),
        ({"partitions": 100, "cohort": 0.06}, 60),
        ({"algorithm": "fed_buff", "buffer": 4, "partitions": 100, "cohort": 6}, 15),
        ({"evaluate_every": 7}, 7),
        ({"algorithm": "sync_sgd"}, 1),
    ],
)
def test_what_is_left_to_the_algorithm_is_recorded(fields: dict[str, Any], every: int) -> None:
    assert resolve(TrainConfig(**SERVER | fields)).config.evaluate_every == every


def test_an_order_is_seeded_or_recorded_or_left_to_the_workers(train, tmp_path) -> None:
    def order(**fields: object) -> object:
        return resolve(TrainConfig(**{"root": tmp_path / "runs"} | SERVER | fields)).order

    run = train(algorithm="async_sgd", model="logistic", rounds=2, name="first")
    assert order(seed=3) == order(seed=3, order="seeded") == Seeded(3)
    assert order(speeds="1,0.5,1,1") == Seeded(0, (1.0, 0.5, 1.0, 1.0))
    assert order(order="recorded:first") == Recorded(full_address(run.address))
    assert order(executor="graph") is None
    assert order(algorithm="sync_sgd") is None
    for differing in ({"seed": 1}, {"algorithm": "downpour"}, {"partitions": 5}, {"fetch_every": 2}):
        with pytest.raises(UsageError, match=r"first is another experiment \(.*\); its order does not fit"):
            order(order="recorded:first", **differing)
    with pytest.raises(RoundweaveError, match="nowhere"):
        order(order="recorded:nowhere")


def test_a_run_that_cannot_have_its_order_leaves_none_behind(train, tmp_path) -> None:
    train(algorithm="sync_sgd", model="logistic", rounds=1, name="first")
    with pytest.raises(UsageError, match="its order does not fit"):
        train(algorithm="async_sgd", model="logistic", rounds=1, name="second", order="recorded:first")
    assert [path.name for path in (tmp_path / "runs").glob("*.zarr")] == ["first.zarr"]
