"""What is to be distributed does not depend on how a configuration distributes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import roundweave as rw
from roundweave.flows.plugins.race.strategies import Strategy, Workload, strategies, workload

DIGITS = 1618
"""Examples to train on, of scikit-learn's digits."""


def test_rounds_of_auto_are_epochs() -> None:
    work, plain = workload(rw.TrainConfig(algorithm="auto", rounds=7, batch_size=16))
    assert (work.examples, work.batch, work.epochs, work.scored, work.local) == (DIGITS, 16, 7, 1, "fed_avg")
    assert work.state == 4 * 19_210
    assert plain.plan.config.partitions == 1


@pytest.mark.parametrize(
    ("options", "epochs", "scored"),
    [
        ({"algorithm": "fed_avg", "rounds": 20}, 20, 1),
        ({"algorithm": "fed_avg", "local_epochs": 5, "rounds": 20, "evaluate_every": 2}, 100, 10),
        ({"algorithm": "fed_avg", "local_steps": 10, "rounds": 20}, 20 * 4 * 10 * 32 / DIGITS, 1280 / DIGITS),
        ({"algorithm": "sync_sgd", "batch_size": 8, "rounds": 20}, 20 * 4 * 8 / DIGITS, 4 * 8 / DIGITS),
        ({"algorithm": "async_sgd", "batch_size": 8, "rounds": 20}, 20 * 8 / DIGITS, 8 / DIGITS),
    ],
)
def test_epochs_are_those_of_the_configuration(options: dict, epochs: float, scored: float) -> None:
    work, _ = workload(rw.TrainConfig(**options))
    assert (work.epochs, work.scored) == pytest.approx((epochs, scored))


LARGE = Workload(6400, 32, state=10**8, epochs=1, scored=1, local="fed_avg")
"""A work of 200 steps an epoch with a large network."""


def test_strategies_do_the_same_work() -> None:
    config = rw.TrainConfig(algorithm="fed_avg", lr=0.3, batch_size=16, rounds=12, evaluate_every=3, root="runs")
    work = replace(workload(config)[0], state=10**8)
    made = list(strategies(work, workers=2, cores=2))
    assert len({each.name for each in made}) == len(made) == 10
    for each in made:
        configured = each.configured(config, work)
        assert configured.algorithm.options["lr"] == pytest.approx(0.3 * each.batch / 16)
        assert configured.partitions == each.partitions
        updates = 1 if each.algorithm == "async_sgd" else each.partitions
        assert configured.rounds * each.steps * each.batch * updates == pytest.approx(12 * DIGITS, rel=0.1)
        again, _ = workload(configured)
        assert again.epochs == pytest.approx(12, rel=0.02)
        assert again.scored == pytest.approx(3, rel=0.02)
        configured.algorithm.build()


def test_larger_batches_have_learning_rates_that_are_larger_by_as_much() -> None:
    config = rw.TrainConfig(algorithm="auto", batch_size=32)
    rates = {
        each.name: (each.batch, each.configured(config, LARGE).algorithm.options["lr"])
        for each in strategies(LARGE, workers=1, cores=1)
    }
    assert rates == {"single": (32, 0.1), "single, batch 128": (128, 0.4), "single, batch 256": (256, 0.8)}


def test_a_larger_batch_leaves_an_epoch_some_steps_and_is_larger() -> None:
    few, wide = replace(LARGE, examples=1280), replace(LARGE, batch=128)
    assert [each.batch for each in strategies(few, 1, 1)] == [32, 128]  # ten steps of 128, five of 256
    assert [each.batch for each in strategies(wide, 1, 1)] == [128, 256]


def test_local_steps_are_no_more_than_wanted() -> None:
    def steps(**options: int) -> list[int]:
        work, _ = workload(rw.TrainConfig(algorithm="auto", **options))
        return [each.steps for each in strategies(work, 2, 1) if each.name.startswith("local")]

    assert steps() == [10, 26]  # 809 examples are 26 batches of 32
    assert steps(most_local_steps=5) == [5]
    assert steps(most_local_steps=10) == [10]


def test_small_networks_are_not_shared_and_one_worker_has_nothing_to_distribute_to() -> None:
    small = replace(LARGE, state=10**6)
    names = {each.name for each in strategies(LARGE, 2, 1)} - {each.name for each in strategies(small, 2, 1)}
    assert names == {"split", "hybrid"}
    alone = replace(small, examples=1000, batch=10)
    assert [each.name for each in strategies(alone, workers=1, cores=4)] == ["single", "single, 4 threads"]


def test_partitions_learn_apart_by_the_algorithm_that_is_given() -> None:
    config = rw.TrainConfig(algorithm="fed_prox", mu=0.5)
    work, _ = workload(config)
    made = {each.name: each for each in strategies(work, 2, 1)}
    assert made["local epoch"].configured(config, work).algorithm.name == "fed_prox"
    with pytest.raises(rw.UsageError, match="sync_sgd takes no mu"):
        made["synchronous"].configured(config, work)


def test_fields_of_other_partitions_are_left_out() -> None:
    config = rw.TrainConfig(algorithm="fed_avg", partitions=4, quorum=3)
    configured = Strategy("single", "inline", 1, "fed_avg", 10, 32).configured(config, workload(config)[0])
    assert (configured.partitions, configured.quorum) == (1, 1)


def test_a_batch_is_no_more_than_a_partition_has() -> None:
    # Of 100 examples two partitions have 50 each: a round of one step sees all, of two steps all twice.
    few = replace(LARGE, examples=100, batch=80)
    assert Strategy("", "auto", 2, "sync_sgd", 1, 80).rounds(few) == 1
    assert Strategy("", "auto", 2, "fed_avg", 2, 80).rounds(few) == 0.5
    assert Strategy("", "inline", 1, "sync_sgd", 1, 80).rounds(few) == 100 / 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "sync_sgd"}, "batches of whole partitions depend on how many there are; give batch_size"),
        ({"lr_schedule": "cosine:30"}, "lr_schedule cosine:30 counts rounds"),
        ({"warmup": 3}, "warmup 3 counts rounds"),
        ({"optimizer": "mine.py:groups"}, "plan tries other learning rates, and a function of yours sets them"),
        ({"accumulate": 2}, "plan compares steps of one batch each; leave accumulate out"),
        ({"held_out": 0}, "plan compares losses on held-out examples, and none are held out; give held_out"),
        ({"algorithm": "tests/flows/plugins/race/test_workload.py:workload"}, "this one is a function of yours"),
    ],
)
def test_work_that_depends_on_how_it_is_distributed_is_refused(options: dict, message: str) -> None:
    with pytest.raises(rw.UsageError, match=message):
        workload(rw.TrainConfig(**options))


def test_a_schedule_over_all_rounds_stays() -> None:
    work, _ = workload(rw.TrainConfig(lr_schedule="cosine"))
    assert work.options["lr_schedule"] == "cosine"
