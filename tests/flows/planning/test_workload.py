"""What is to be distributed does not depend on how a configuration distributes it."""

from __future__ import annotations

import pytest

from flows.config.train import TrainConfig
from flows.planning.strategies import Strategy, strategies
from flows.planning.workload import Workload, workload
from storage.errors import UsageError

DIGITS = 1618
"""Examples to train on, of scikit-learn's digits."""


def test_rounds_of_auto_are_epochs() -> None:
    work = workload(TrainConfig(algorithm="auto", rounds=7, batch_size=16))
    assert (work.examples, work.batch, work.epochs, work.scored, work.local) == (DIGITS, 16, 7, 1, "fed_avg")
    assert work.steps == 102  # of 1,618 examples
    assert work.state == 4 * 19_210


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
    work = workload(TrainConfig(**options))
    assert (work.epochs, work.scored) == pytest.approx((epochs, scored))


def test_strategies_do_the_same_work() -> None:
    config = TrainConfig(algorithm="fed_avg", lr=0.3, batch_size=16, rounds=12, evaluate_every=3, root="runs")
    work = workload(config)
    made = list(strategies(work, workers=2, cores=2))
    assert len({each.name for each in made}) == len(made) >= 12
    for each in made:
        configured = each.configured(config, work)
        assert configured.algorithm.options["lr"] == 0.3
        assert configured.algorithm.options["batch_size"] == 16
        assert configured.partitions == each.partitions
        assert configured.rounds * each.steps * 16 * each.updates == pytest.approx(12 * DIGITS, rel=0.02)
        again = workload(configured)
        assert again.epochs == pytest.approx(12, rel=0.02)
        assert again.scored == pytest.approx(3, rel=0.02)
        configured.algorithm.build()


def test_local_steps_are_no_more_than_wanted() -> None:
    def steps(**options: int) -> list[int]:
        work = workload(TrainConfig(algorithm="auto", **options))
        return [each.steps for each in strategies(work, 2, 1) if each.name.startswith("local") and each.ranks == 1]

    assert steps() == [10, 26] * 2  # 809 examples are 26 batches of 32
    assert steps(most_local_steps=5) == [5] * 2
    assert steps(most_local_steps=10) == [10] * 2


def test_partitions_learn_apart_by_the_algorithm_that_is_given() -> None:
    work = workload(TrainConfig(algorithm="fed_prox", mu=0.5))
    made = {each.name: each for each in strategies(work, 2, 1)}
    assert made["local epoch, gang"].algorithm == "fed_prox"
    assert made["local epoch, gang"].lacks(work) == []
    assert made["synchronous, gang"].lacks(work) == ["mu"]


def test_one_worker_has_nothing_to_distribute_to() -> None:
    work = Workload(1000, 10, 1, 1, 1, 1, "fed_avg")
    assert [each.name for each in strategies(work, workers=1, cores=4)] == ["single", "single, 4 threads"]


def test_fields_of_other_partitions_are_left_out() -> None:
    config = TrainConfig(algorithm="fed_avg", partitions=4, quorum=3)
    configured = Strategy("single", "inline", 1, "fed_avg", 10).configured(config, workload(config))
    assert (configured.partitions, configured.quorum) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "sync_sgd"}, "batches of whole partitions depend on how many there are; give batch_size"),
        ({"lr_schedule": "cosine:30"}, "lr_schedule cosine:30 counts rounds"),
        ({"warmup": 3}, "warmup 3 counts rounds"),
        ({"algorithm": "tests/flows/planning/test_workload.py:workload"}, "this one is a function of yours"),
    ],
)
def test_work_that_depends_on_how_it_is_distributed_is_refused(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        workload(TrainConfig(**options))


def test_a_schedule_over_all_rounds_stays() -> None:
    work = workload(TrainConfig(lr_schedule="cosine"))
    assert work.options["lr_schedule"] == "cosine"
