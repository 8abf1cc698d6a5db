"""Validation data are scored in each round as `score` scores them, and are never trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.plugins.score_partitions.scorer import OwnExamples
from roundweave.flows.plugins.validation.scorer import Validated
from roundweave.flows.reporting.listening import shown
from roundweave.storage.errors import DataError, ExperimentDiffers, ModelError, NotARun, UsageError
from roundweave.storage.rounds.commits import ranking
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.scorers import Scorer
from roundweave.tasks.rounds.scoring import Tally
from roundweave.tasks.rounds.steps import judge_round
from tests.flows import nights
from tests.flows.digits import DIGITS

MINE = f"""{DIGITS}
def today(): return only(range(0, 1000))
def tomorrow(): return only(range(1000, 1500))
def apart(): return only(range(1500, 1797))
def fewer(): return only(range(1500, 1790))
def each(partition, partitions): return only(range(partition, 1500, partitions))
def entropy(outputs, targets): return -torch.special.entr(outputs.softmax(1)).sum().reshape(1)
"""

KINDS: dict[str, dict[str, object]] = {
    "own": {"model": "{}:net", "loss": "{}:smoothed", "scores": "{}:entropy,accuracy,top5"},
    "float64": {"dtype": "float64"},
    "ranks": {"ranks": 2, "model": "mlp"},
    "stacked": {"stacked": 3},
    "transform": {"held_out_transform": "{}:halved"},
    "server": {"algorithm": "downpour", "rounds": 4, "evaluate_every": 2},
    "cohort of a server": {"algorithm": "fed_buff", "rounds": 4, "evaluate_every": 2, "cohort": 2, "buffer": 1},
    "topology": {"algorithm": "d_psgd", "topology": "ring"},
    "cohort": {"cohort": 2, "keep": "last:1"},
    "partitioned": {"data": "{}:each"},
    "own scores": {"score_partitions": 0.1},
}


@pytest.fixture
def mine(own) -> str:
    return own(MINE)


def given(mine: str, fields: dict[str, object]) -> dict[str, object]:
    small = {"partitions": 3, "rounds": 2, "model": "logistic"}
    fields = {"data": "{}:today", "validation": "{}:apart"} | small | fields
    return {key: value.format(mine) if isinstance(value, str) else value for key, value in fields.items()}


# In the first suite, data that no process has all of.
EACH = [pytest.param(kind, marks=[pytest.mark.thorough] * (kind != "partitioned")) for kind in KINDS]


@pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled")
@pytest.mark.dear("each round is scored twice, with and without a run beside it, and replayed")
@pytest.mark.parametrize("kind", EACH)
def test_each_round_has_what_score_gives_to_the_bit_and_trains_as_without(kind: str, train, mine) -> None:
    name = kind.replace(" ", "-")
    fields = given(mine, KINDS[kind])
    run = train(**fields, name=name)
    assert run.digest == train(**fields | {"validation": None}, name=f"{name}-without").digest
    scored = [number for number in run.committed if run.round(number).score]
    assert scored[0] == 0
    for number in scored:
        validated = run.score(number, data=f"{mine}:apart").score
        wanted = {"validation_loss": validated.loss} | {f"validation_{n}": v for n, v in validated.values.items()}
        recorded = run.round(number).score.values
        assert {n: v for n, v in recorded.items() if n.startswith("validation_")} == wanted
        assert run.score(number).score == replace(run.round(number).score, values=recorded) or kind == "own scores"
    assert run.replay("all").identical


def test_labels_of_a_table_are_numbered_as_in_training(train, tmp_path: Path) -> None:
    for name, labels, count in (("table", "xyz", 120), ("apart", "zyx", 90)):
        rows = [f"{number % 7},{number % 5},{labels[number % 3]}" for number in range(count)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,label", *rows]))
    data, apart = (f"csv:{tmp_path}/{name}.csv" for name in ("table", "apart"))
    run = train(data=data, validation=apart, target="label", partitions=4, rounds=2)
    validated = run.score(2, data=apart).score
    assert validated.examples == 90
    assert run.round(2).score.values["validation_loss"] == validated.loss
    assert run.round(2).score.values["validation_accuracy"] == validated.accuracy


@pytest.mark.parametrize("executor", [GraphExecutor, pytest.param(RanksExecutor, marks=pytest.mark.thorough)])
def test_blocks_of_a_cluster_have_the_scores_of_one_process(client, train, mine, executor) -> None:
    alone, there = (
        train(which, **given(mine, {}), name=name)
        for which, name in ((None, "alone"), (executor(client), "there"))
    )
    assert [alone.round(number).score for number in range(3)] == [there.round(number).score for number in range(3)]


def test_a_night_is_judged_against_its_parent_on_the_same_validation_data(mine) -> None:
    gate = {"accept": "validation_loss <= parent", "best": "validation_accuracy"}
    first = nights.trained(**given(mine, gate), name="first")
    following = given(mine, gate | {"data": f"{mine}:tomorrow", "start_from": "first@-1", "rounds": 3})
    better = nights.trained(**following, name="better")
    worse = nights.trained(**following | {"lr": 30.0}, name="worse")
    assert [first.status, better.status, worse.status] == ["complete", "complete", "rejected"]
    before = first.round(-1).score.values["validation_loss"]
    assert better.round(0).score.values["validation_loss"] == before
    assert f"the parent's is {before:.6g}" in worse.judgement.reasons[0]
    best = max(worse.committed, key=lambda number: worse.round(number).score.values["validation_accuracy"])
    assert worse.best().number == best


@pytest.mark.parametrize(
    ("validation", "error", "line"),
    [
        ("empty", DataError, "at least one"),
        ("small", DataError, r"validation has inputs \(1, 7, 7\) and targets \(\), the data has \(1, 8, 8\)"),
        ("more", ModelError, "gives 10 outputs, but labels go up to 11"),
        ("quantities", DataError, "targets that are quantities, the data has labels"),
        ("each", UsageError, "validation is one data set for all partitions"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line_before_there_is_a_run(
    train, mine, validation, error, line
) -> None:
    with pytest.raises(error, match=line):
        train(**given(mine, {"validation": f"{mine}:{validation}"}), name="refused")
    with pytest.raises(NotARun):
        rw.open_run("refused")


def test_a_run_goes_on_with_the_validation_data_that_it_began_with(train, mine) -> None:
    train(**given(mine, {}), name="first")
    for other, said in (
        ("fewer", r"[0-9a-f]{12} instead of [0-9a-f]{12}"),
        (None, "none instead of [0-9a-f]{12}"),
    ):
        with pytest.raises(ExperimentDiffers, match=f"other validation data, {said}"):
            train(**given(mine, {"validation": other and f"{mine}:{other}", "rounds": 3}), name="first")
    train(**given(mine, {"rounds": 3}), name="first")
    assert "validation_loss" in rw.open_run("first").round(3).score.values


def test_a_score_of_fewer_examples_is_none(train) -> None:
    objective = Objective(ModelSpec("linear", (1,), 1, "float32", 0), "mse", ())
    tallies = [Tally(3, {"loss": (6.0, 3)}), Tally(1, {"loss": (4.0, 1)})]
    assert Validated(None, 4).judge(objective, tallies, 1) == ({"validation_loss": 2.5}, {})
    assert Validated(None, 5).judge(objective, tallies, 1) == ({}, {})
    assert Validated(None, 4).judge(objective, [replace(tallies[0], left_out=1), tallies[1]], 1) == (
        {},
        {},
    )
    assert Validated(None, 0).judge(objective, [], 1) == ({}, {})


def test_each_scorer_judges_its_own_tallies() -> None:
    objective = Objective(ModelSpec("linear", (1,), 1, "float32", 0), "mse", ())
    tallies = [Tally(5, {"loss": (100.0, 5)}), Tally(1, {"loss": (4.0, 1)}, scorer="validation_")]
    tallies += [Tally(1, {"loss": (float(p), 1)}, scorer="own_", partition=p) for p in (2, 1)]
    work = Work(objective, None, None, 0, scorers=(Scorer(), Validated(None, 1), OwnExamples()))
    score, rows = judge_round(work, 1, tallies)
    values = {"validation_loss": 4.0, "worst_loss": 2.0, "spread_loss": 0.5}
    assert (score.loss, score.examples, dict(score.values)) == (20.0, 5, values)
    assert rows == {p: {"own_loss": float(p), "own_examples": 1} for p in (1, 2)}
    assert judge_round(work, 1, tallies[1:])[0] is None


def test_the_direction_is_that_of_the_score() -> None:
    names = ("validation_loss", "validation_accuracy", "validation_mae", "max:validation_loss", "spread_accuracy")
    assert [ranking(name)[1] for name in names] == [True, False, True, False, True]
    assert [shown(name, 0.5) for name in names] == ["0.5000", "50.00%", "0.5000", "0.5000", "50.00%"]
