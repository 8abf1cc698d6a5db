"""A training goes on from what its store has, to the bits of one at once, or says why it cannot."""

from __future__ import annotations

import pytest

import roundweave as rw
from roundweave.storage.errors import ExperimentDiffers, RoundweaveError
from tests.flows.nights import trained
from tests.runs import RUNS

PLAIN = RUNS["plain"] | {"name": "plain"}


def test_more_rounds_go_on_and_equal_a_run_in_one_go(stored, train) -> None:
    stored("plain")
    extended = trained(**PLAIN | {"rounds": 6})
    assert extended.done == 6
    assert extended.digest == train(**PLAIN | {"rounds": 6, "name": "longer"}).digest
    assert extended.round(3).commit.token != extended.round(4).commit.token


def test_another_experiment_under_the_same_name_is_refused_by_its_fields(stored) -> None:
    stored("plain")
    with pytest.raises(ExperimentDiffers, match="seed 0 -> 1") as refused:
        trained(**PLAIN | {"local_steps": 5, "seed": 1})
    says = "give this one another --name, or go on with that one: `roundweave resume plain`"
    for part in ("local_steps 2 -> 5", says):
        assert part in str(refused.value)


def test_where_a_run_of_the_name_failed_in_its_first_round_it_is_said_how_to_delete_it(own, train) -> None:
    fails = "def loss(outputs, targets):\n    return outputs.sum() if len(outputs) <= 8 else 1 / 0"
    with pytest.raises(RoundweaveError, match="round 1: "):
        trained(name="failed", loss=f"{own(fails)}:loss", held_out=0)
    with pytest.raises(ExperimentDiffers, match="that one, which has no round: `roundweave rm failed`"):
        trained(name="failed")


def test_a_damaged_round_is_done_again_to_the_same_bits_and_named(stored, flip) -> None:
    run = stored("plain")
    before = run.digest
    flip(run.path / "params/fc1.weight/c/3/0/0")
    again = trained(**PLAIN)
    assert (again.done, again.digest, again.damaged) == (3, before, [3])


def test_a_target_that_is_reached_before_round_1_ends_the_run_until_it_is_raised() -> None:
    fields = {"model": "logistic", "partitions": 2, "local_epochs": 2, "executor": "inline"}
    rw.train(rw.TrainConfig(**fields, rounds=5, name="first"), bar=False)
    fork = rw.fork("first@5", target_accuracy=0.5, name="second", executor="inline")
    run = rw.train(fork, bar=False)
    accuracy = run.round(0).score.values["accuracy"]
    assert (run.done, run.status) == (0, "complete")
    assert run.stop == f"round 0: accuracy {accuracy:.4f} has reached the target 0.5"
    raised = rw.train(fork.model_copy(update={"target_accuracy": 1.0, "rounds": 2}), bar=False)
    assert (raised.done, raised.status, raised.stop) == (2, "complete", None)
