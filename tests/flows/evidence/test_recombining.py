"""Rounds that are reduced again give the numbers of the reduce, and with nothing changed the recorded bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import roundweave as rw
from roundweave.flows.config.recorded import resumed_config
from roundweave.storage.errors import DataError, RoundMissing
from roundweave.tasks.algorithms.table import ALGORITHMS
from tests.flows.command.in_process import refused
from tests.flows.command.in_process import run as command
from tests.flows.evidence.towards import MINE, TARGETS
from tests.rows import but_first, second


@pytest.fixture
def simple(train, own):
    """Two rounds of five partitions; each is drawn to its own number, and from 4, their mean, in the second."""

    def make(name: str = "simple", targets: tuple[float, ...] = TARGETS, **fields: object) -> rw.Run:
        mine = own(MINE.format(targets=targets), name)
        fields |= {"data": f"{mine}:data", "algorithm": f"{mine}:algorithm", "split": "contiguous", "rounds": 2}
        return train(model="linear", dtype="float64", partitions=len(targets), name=name, **fields)

    return make


def resumed(name: str, rounds: int) -> rw.Run:
    rw.train(resumed_config(name, None, trust=False, changes={"rounds": rounds, "executor": "inline"}))
    return rw.open_run(name)


def weight(run: rw.Run, round: int = 1) -> float:
    """What all parameters of a simple run are after a round, as they must be equal."""
    (value,) = {value for tensor in run.round(round).params.values() for value in tensor.reshape(-1).tolist()}
    return value


# Numbers by hand.


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, 4.0),  # (1 + 2 + 3 + 4 + 10) / 5
        ({"reduce": "median"}, 3.0),
        *second(({"reduce": rw.Median()}, 3.0)),
        ({"reduce": "median", "without": (4,)}, 2.5),
        ({"without": (0, 1)}, 17 / 3),
        ({"reduce": "median", "apply": "sgd", "apply_options": {"lr": 0.5}}, 3.5),  # from 4 half way to 3
    ],
)
def test_a_round_is_reduced_again_from_the_stored_state_before_it(simple, asked, wanted) -> None:
    again = simple().recombine(2, save="again", **asked)
    saved = rw.open_run("again")
    assert weight(saved, 0) == pytest.approx(wanted, abs=1e-12)
    row = again.table().loc[2]
    # Of the held-out example, whose input is 1 and whose target 6, the prediction is weight + bias.
    assert (row["loss"], row["loss_before"]) == pytest.approx(((2 * wanted - 6) ** 2, 4.0), abs=1e-9)
    assert saved.round(0).score.loss == row["loss"]


def test_the_outer_optimizers_memory_is_that_of_the_round_before_where_it_keeps_such_slots(simple) -> None:
    run = simple(momentum=0.5)
    # Round 1 leads from the initial weights w to 4, with velocity v = w - 4; round 2 to 4 - v / 2.
    velocity = next(iter(run.round(1).state.memory["velocity"].values()))
    start = next(iter(run.round(0).state.params.values()))
    assert torch.allclose(velocity, start - 4)
    run.recombine(2, reduce="median", save="median")
    after = next(iter(rw.open_run("median").round(0).state.params.values()))
    assert torch.allclose(after, 4 - (velocity / 2 + 1), atol=1e-12)
    run.recombine(2, apply="adam", apply_options={"lr": 1.0, "beta1": 0.0, "tau": 1.0}, save="adam")
    adam = rw.open_run("adam")
    assert set(adam.round(0).state.memory) == {"first", "second"}  # they began with 0 and tau^2
    assert weight(adam, 0) == pytest.approx(4.0, abs=1e-12)


def test_all_rounds_are_reduced_each_from_the_recorded_state_before_it(stored) -> None:
    run = stored("plain")
    every = run.recombine(reduce="median").table()
    assert list(every.index) == [1, 2, 3]
    for number in (1, 2, 3):
        assert run.recombine(number, reduce="median").table().loc[number].equals(every.loc[number])


# Laws.

SMALL = {"model": "mlp", "model_options": {"hidden": 6}, "partitions": 3, "rounds": 3}

FIRST = ("scaffold", "fed_buff")  # with a carry and extras, and updates that arrive


@pytest.mark.parametrize("algorithm", but_first(FIRST, ALGORITHMS))
def test_with_nothing_changed_it_gives_the_recorded_bits(train, algorithm) -> None:
    steps = {"local_steps": 2} if "local_steps" in ALGORITHMS[algorithm].options else {}
    run = train(**SMALL, **steps, algorithm=algorithm, name="run", evaluate_every=2)
    for round in run.recombine().rounds:
        assert round.digest == run.round(round.round).commit.state
        assert round.score == round.original
    assert run.recombine(2).rounds[0].score == run.round(2).score


@pytest.mark.thorough
def test_what_it_says_of_the_updates_decides_and_not_who_asks(stored, client) -> None:
    run, config = stored("plain"), rw.RecombineConfig(run="plain", reduce="median", executor="inline")
    assert run.recombine(reduce="median") == (wanted := rw.recombine(config))
    with client.as_current():
        assert rw.recombine(config.model_copy(update={"executor": "graph", "workers": 2})) == wanted


@pytest.mark.parametrize("name", but_first(["scaffold"], ["scaffold", "matched", "adam", "momentum"]))
def test_a_saved_run_goes_on_and_is_replayed_to_the_bit(stored, name) -> None:
    """Also where it deals partitions anew, as `momentum`."""
    stored(name).recombine(2, reduce="median", without=[1], save="kept")
    kept = resumed("kept", 2)
    assert kept.replay("all").identical
    assert kept.verify().findings == ()
    assert kept.recombine().rounds[0].identical


def test_what_partitions_carry_goes_along(stored) -> None:
    run = stored("scaffold")
    run.recombine(2, without=[1], save="kept")
    kept = rw.open_run("kept")
    assert kept.round(0).commit.carry_from == {0: 0, 1: 0, 2: 0}
    for partition, round in ((0, 2), (1, 1), (2, 2)):
        wanted, carried = run.round(round).update(partition).carry, kept.round(0).update(partition).carry
        assert torch.equal(wanted["control"]["float32"], carried["control"]["float32"])
    first, third = run.round(2).update(0), run.round(2).update(2)
    sum_of_both = first.extras["control"]["float32"] + third.extras["control"]["float32"]
    earlier, control = (each.state.memory["control"]["float32"] for each in (run.round(1), kept.round(0)))
    assert torch.allclose(control, earlier + sum_of_both / 3, atol=1e-6)  # of three partitions


def test_a_saved_run_goes_on_with_the_new_reduce_and_says_where_it_came_from(stored, capsys) -> None:
    run = stored("plain")
    run.recombine(2, reduce="trimmed_mean:1", save="kept")
    kept = rw.open_run("kept")
    parent = {"run": "plain", "round": 2, "chain": run.round(2).chain, "changed": {"reduce": "trimmed_mean:1"}}
    assert kept.attributes["parent"] == parent
    assert (kept.status, kept.done, kept.rounds) == ("interrupted", 0, 1)
    assert command(capsys, "resume", "kept", "--rounds", "2", "--executor", "inline")[0] == 0
    # It is as if the run had been reduced so from its second round on.
    assert kept.refresh().done == 2
    assert kept.recombine().table()["identical"].all()
    assert "TrimmedMean(f=1)" in kept.attributes["algorithm"]
    _, out, _ = command(capsys, "show", "kept")
    assert f"plain@2, reduced again: reduce trimmed_mean:1, chain {run.round(2).chain}" in out


def test_what_is_kept_with_nothing_changed_goes_on_as_the_run_did(train) -> None:
    run = train(**SMALL, local_steps=2, name="run", lr_schedule="linear:3", algorithm="scaffold")
    run.recombine(2, save="kept")
    kept = resumed("kept", 1)
    assert all(torch.equal(run.round(3).params[n], tensor) for n, tensor in kept.round(1).params.items())


def test_refused_updates_stay_out(simple) -> None:
    run = simple(targets=(1.0, 2.0, 99.0, 3.0))
    assert list(run.round(2).refused) == [2]
    assert run.recombine(2).rounds[0].identical
    run.recombine(2, without=[0], save="kept")
    assert weight(rw.open_run("kept"), 0) == pytest.approx(2.5)


# Parts of the user's own.


def test_a_reduce_of_the_users_is_kept_by_value(simple, own, tmp_path: Path) -> None:
    run = simple()
    mine = own(MINE.format(targets=TARGETS), "reduces")
    run.recombine(2, reduce=f"{mine}:Least", save="kept")
    (tmp_path / "reduces.py").unlink()
    # The greatest difference to a target is that to the least of them.
    assert weight(rw.open_run("kept"), 0) == 1.0
    assert rw.open_run("kept").attributes["parent"]["changed"] == {"reduce": "reduces.py:Least"}
    kept = resumed("kept", 1)
    assert weight(kept) == 1.0
    assert kept.recombine().rounds[0].identical


# What cannot be.


CANNOT = [
    (["--round", "2", "--reduce", "medain"], 2, "unknown reduce 'medain'; did you mean median?"),
    (["--round", "2", "--apply", "adma"], 2, "unknown apply 'adma'; did you mean adam?"),
    (["--round", "2", "--apply", "sgd", "--apply-options", '{"beta1": 1}'], 2, "takes no beta1; it takes lr"),
    (["--round", "2", "--apply-options", '{"lr": 1}'], 2, "apply_options need apply"),
    (["--round", "2", "--without", "3"], 2, "plain.zarr has no partition 3; it has partitions 0 to 2"),
    (["--round", "2", "--without", "0,1,2"], 2, "round 2 accepted 3 updates, without 0 to 2 it has 0, the quorum"),
    (["--round", "2", "--reduce", "krum:3"], 2, "needs 9 updates, and a round has 3"),
    (["--round", "0"], 2, "round 0 is the initial state"),
    (["--round", "7"], 1, "no committed round 7"),
    (["--round", "second"], 2, "round = 'second': expected round to recombine: a number, last or best"),
    ([], 2, "no round is named; give --round R, or --all"),
    (["--round", "2", "--all"], 2, "no round is named; give --round R, or --all"),
    (["--all", "--save", "x"], 2, "a new run stores the result of one round; give round"),
    (["--round", "2", "--save", "plain"], 2, "exists already; keep the round under another name"),
]


def test_what_cannot_be_is_one_clear_line(stored, capsys) -> None:
    stored("plain")
    for arguments, code, said in CANNOT:
        found, line = refused(capsys, "recombine", "plain", *arguments, "--executor", "inline")
        assert (found, said in line) == (code, True), line


def test_a_round_after_a_lost_one_cannot_be_reduced_again_and_all_leaves_it_out(stored) -> None:
    run = stored("plain")
    (run.path / "commits" / "2.json").unlink()
    assert list(rw.open_run("plain").recombine(reduce="median").table().index) == [1]
    with pytest.raises(RoundMissing, match="2"):
        rw.open_run("plain").recombine(3)


def test_other_examples_are_refused_and_the_same_ones_elsewhere_are_not(simple, own, tmp_path: Path) -> None:
    run = simple()
    same = own(MINE.format(targets=TARGETS), "same")
    other = own(MINE.format(targets=(1.0, 2.0, 3.0, 4.0, 9.0)), "other")
    assert run.recombine(2, data=f"{same}:data").rounds[0].identical
    says = r"simple: other examples, of digest .*; restore the recorded ones.*--data"
    with pytest.raises(DataError, match=says):
        run.recombine(2, data=f"{other}:data")


# What is printed.


def test_the_table_has_the_scores_beside_the_recorded_ones(simple, capsys) -> None:
    simple()
    recombine = ("recombine", "simple", "--executor", "inline", "--round")
    head, row = command(capsys, *recombine, "best", "--reduce", "median")[1].splitlines()
    # The absolute error is the root of the loss, of one example.
    assert head.split() == ["round", "loss", "loss_before", "mae", "mae_before", "new", "state"]
    assert row.split() == ["1", "0.0000", "4.0000", "0.0000", "2.0000", "other", "bits"]
    _, out, _ = command(capsys, *recombine, "last")
    assert out.splitlines()[1].split() == ["2", *["4.0000"] * 2, *["2.0000"] * 2, "the", "same", "bits"]


def test_machines_get_an_object(simple, capsys) -> None:
    run = simple()
    options = ("--round", "2", "--reduce", "median", "--save", "kept", "--json", "--executor", "inline")
    printed = json.loads(command(capsys, "recombine", "simple", *options)[1].splitlines()[-1])
    (row,) = printed["rounds"]
    assert (printed["run"], row["round"], row["identical"]) == (run.name, 2, False)
    assert (row["loss"], row["loss_before"]) == pytest.approx((0, 4), abs=1e-9)
    assert printed["saved"] == str(rw.open_run("kept").path.resolve())


def test_partitions_are_scored_on_what_they_held_out_of_the_rounds_own_split(train) -> None:
    run = train(partitions=3, rounds=3, local_steps=2, resplit_every=1, score_partitions=0.2)
    for reduced in run.recombine(reduce="mean").rounds:
        assert reduced.identical
        assert reduced.score == reduced.original
