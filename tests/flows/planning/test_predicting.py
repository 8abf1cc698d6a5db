"""Predictions are sums that can be done by hand."""

from __future__ import annotations

from math import inf

import pytest

from flows.config.train import TrainConfig
from flows.planning.calibrating import Calibration
from flows.planning.choosing import choose
from flows.planning.predicting import Prediction, Size, predict
from flows.planning.strategies import Strategy, base, strategies
from flows.planning.trying import Tried
from tasks.planning.measuring import Pace

SIZE = Size(examples=6400, batch=32, state=1_000_000, data=20_000_000)
ALONE = Pace(step=0.001, start=0.01, score=0.5, reduce=1e-9, resident=200_000_000, available=10**9)
TOGETHER = Pace(step=0.002, start=0.02, score=0.5, reduce=1e-9, resident=300_000_000, available=10**9)


def measured(**rounds: float) -> Calibration:
    tried = {f"synchronous, {name}": Tried(seconds, seconds, seconds, 0) for name, seconds in rounds.items()}
    return Calibration(2, {1: ALONE}, TOGETHER, Tried(0.014, 0.014, 0.014, 0), tried, {})


def local(executor: str, partitions: int, steps: int) -> Strategy:
    return Strategy("local", executor, partitions, "fed_avg", steps, 1, {"local_steps": steps})


def test_a_round_is_what_lies_between_maps_and_the_maps() -> None:
    # Of a round of one step 0.014 s, its map is 0.01 + 0.001; so 0.003 lie between.
    single = predict(local("inline", 1, 200), SIZE, measured())
    assert single.seconds == pytest.approx(0.003 + 0.01 + 200 * 0.001)
    assert single.epoch == pytest.approx(single.seconds)  # 200 steps of 32 are 6,400 examples
    # Of 0.05 s as a gang the map is 0.02 + 0.002; so 0.028 lie between, also of a round of 100 steps.
    gang = predict(local("gang", 2, 100), SIZE, measured(gang=0.05))
    assert gang.seconds == pytest.approx(0.028 + 0.02 + 100 * 0.002)
    assert gang.epoch == pytest.approx(gang.seconds)  # 100 steps of 32 on 2 partitions
    assert gang.maps == pytest.approx(0.22 / 0.248)


def test_rounds_of_one_step_take_what_they_took() -> None:
    one = predict(base("graph", 2), SIZE, measured(graph=0.05))
    assert (one.seconds, one.fastest, one.slowest) == pytest.approx((0.05, 0.045, 0.055))
    assert one.epoch == pytest.approx(100 * 0.05)


def test_what_could_not_be_tried_is_refused_with_the_reason() -> None:
    split = Strategy("split", "gang", 1, "fed_avg", 20, 1, {"ranks": 2})
    calibration = Calibration(2, {1: ALONE}, TOGETHER, Tried(1, 1, 1, 0), {}, {"split": "no layers to share"})
    prediction = predict(split, SIZE, calibration)
    assert (prediction.refused, prediction.epoch) == ("no layers to share", inf)


def test_what_needs_more_memory_than_there_is_is_refused() -> None:
    large = Size(6400, 32, state=200_000_000, data=0)
    refused = predict(local("inline", 1, 200), large, measured()).refused
    assert refused == "a process needs 1430 MiB of memory and has 1239"


def prediction(name: str, epoch: float, refused: str | None = None) -> Prediction:
    return Prediction(Strategy(name, "graph", 2, "fed_avg", 10), 1, 1, 1, epoch, 0.5, 0, 0, 0, refused)


def test_the_first_is_chosen_that_takes_about_the_least() -> None:
    first, second, third = prediction("first", 1.04), prediction("second", 1.0), prediction("third", 0.5, "no")
    assert choose([first, second, third]) is first
    assert choose([prediction("slow", 1.06), second]) is second


def test_strategies_differ_and_can_be_configured() -> None:
    config = TrainConfig(algorithm="fed_avg", lr=0.3, batch_size=16, root="runs")
    made = list(strategies(config, workers=2, cores=2, examples=1600))
    assert len({each.name for each in made}) == len(made) >= 8
    for each in made:
        configured = each.configured(config)
        assert configured.algorithm.options["lr"] == 0.3
        assert configured.algorithm.options["batch_size"] == 16
        assert configured.partitions == each.partitions
        configured.algorithm.build()
