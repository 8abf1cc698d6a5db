"""What a configuration says of a parameter server: when it is scored, and the order of its updates."""

from __future__ import annotations

from typing import Any

import pytest

from roundweave import TrainConfig, UsageError
from roundweave.flows.planning.plan import plan
from roundweave.flows.plugins.parameter_server.orders import Recorded, Seeded
from roundweave.storage.places.base import full_address

SERVER = {"algorithm": "async_sgd", "model": "logistic", "executor": "inline"}


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
    assert plan(TrainConfig(**SERVER | fields)).config.evaluate_every == every


def test_an_order_is_seeded_or_recorded_or_left_to_the_workers(train) -> None:
    def order(**fields: object) -> object:
        schedule = plan(TrainConfig(**SERVER | fields)).schedule
        return schedule.order if schedule else None

    run = train(algorithm="async_sgd", model="logistic", rounds=2, name="first")
    assert order(seed=3) == order(seed=3, order="seeded") == Seeded(3)
    assert order(speeds="1,0.5,1,1") == Seeded(0, (1.0, 0.5, 1.0, 1.0))
    assert order(order="recorded:first") == Recorded(full_address(run.address))
    assert order(executor="graph") is None
    assert order(algorithm="sync_sgd") is None
    for differing in ({"seed": 1}, {"algorithm": "downpour"}, {"partitions": 5}, {"fetch_every": 2}):
        with pytest.raises(UsageError, match=r"first is another experiment \(.*\); its order does not fit"):
            order(order="recorded:first", **differing)


def test_a_run_that_cannot_have_its_order_leaves_none_behind(train, tmp_path) -> None:
    train(algorithm="sync_sgd", model="logistic", rounds=1, name="first")
    with pytest.raises(UsageError, match="its order does not fit"):
        train(algorithm="async_sgd", model="logistic", rounds=1, name="second", order="recorded:first")
    assert [path.name for path in (tmp_path / "runs").glob("*.zarr")] == ["first.zarr"]
