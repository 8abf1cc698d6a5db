"""Tables of a run's rounds: the best one, and how far tensors lie apart, by hand."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch

from roundweave.flows.stored import Run
from roundweave.storage.errors import RoundMissing, UsageError
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.commits import LOWEST, Score, UpdateRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec
from roundweave.tasks.networks.scores import SCORES
from tests.storage.conftest import ATTRIBUTES

LAYOUT = Layout(params=(TensorSpec("w", "float32", (2,)), TensorSpec("b", "float64", ())))
STATES = [([3.0, 4.0], 0.0), ([3.0, 9.0], 2.0), ([6.0, 18.0], 2.0)]
# By round: direction of w and of b, weight, whether it is accepted.
UPDATES = [
    {0: ([3.0, 0.0], 0.0, 1, True), 1: ([-1.0, 0.0], 4.0, 3, True), 2: ([1e9, 0.0], 0.0, 5, False)},
    {1: ([1.0, -1.0], 0.5, 7, True)},
]


@pytest.fixture
def run(tmp_path) -> Run:
    """Two rounds of three partitions with these numbers."""

    def state(round: int) -> State:
        w, b = STATES[round]
        return State({"float32": torch.tensor(w), "float64": torch.tensor([b], dtype=torch.float64)}, round=round)

    store = RoundStore.create(tmp_path / "runs/hand.zarr", Schema(LAYOUT, 3), 2, ATTRIBUTES, state(0))
    for round, updates in enumerate(UPDATES, 1):
        records = {}
        for partition, (w, b, weight, accepted) in updates.items():
            vectors = {"float32": torch.tensor(w), "float64": torch.tensor([b], dtype=torch.float64)}
            update = Update(vectors, weight=weight)
            store.tensors.write_updates(round, {partition: update})
            records[partition] = UpdateRecord(update_digest(update), weight, None if accepted else "too far")
        store.tensors.write_state(state(round))
        store.commit(replace(store.describe(state(round), "writer", 1), updates=records))
    return Run(store.path)


def test_the_divergence_is_that_around_the_weighted_mean(run) -> None:
    """Round 1: mean (1 * (3, 0, 0) + 3 * (-1, 0, 4)) / 4 = (0, 0, 3); the refused one does not count."""
    table = run.divergence()
    assert table.columns.names == ["measure", "partition"]
    assert table.index.tolist() == [0, 1, 2]
    first = table.loc[1]
    np.testing.assert_allclose(first["norm"], [sqrt(18), sqrt(2), np.nan], rtol=1e-12)
    np.testing.assert_allclose(first["relative"], [sqrt(18) / 3, sqrt(2) / 3, np.nan], rtol=1e-12)
    np.testing.assert_allclose(first["cosine"], [0, 4 / sqrt(17), np.nan], rtol=1e-12)


def test_the_only_update_of_a_round_is_its_mean(run) -> None:
    told = run.divergence([2]).loc[2].unstack("measure")
    np.testing.assert_allclose(told.loc[1, ["norm", "relative", "cosine"]], [0, 0, 1], atol=1e-12)
    assert told.loc[[0, 2]].isna().all(axis=None)
    assert run.divergence([0]).isna().all(axis=None)


def test_the_difference_of_two_rounds_is_told_by_tensor(run) -> None:
    table = run.diff(0, 1)
    assert table.index.tolist() == ["params/w", "params/b"]
    np.testing.assert_allclose(table.loc["params/w"], [5, 1, (9 + 36) / (5 * sqrt(90))], rtol=1e-12)
    np.testing.assert_allclose(table.loc["params/b"], [2, np.nan, np.nan])
    np.testing.assert_allclose(run.diff(1, -1).loc["params/w", ["norm", "cosine"]], [sqrt(90), 1], rtol=1e-12)


def test_every_tensor_but_the_frozen_ones_is_compared(tiny) -> None:
    run = Run(tiny.train(tiny.create(), 2).path)
    assert run.diff(1, 2).index.tolist() == [path for path in run.tensors if not path.startswith("frozen/")]
    same = run.diff(2, 2)
    assert (same["norm"] == 0).all()


def test_changes_are_relative_to_what_was_before(run) -> None:
    table = run.changes()
    np.testing.assert_allclose(table, [[1, np.nan], [1, 0]], rtol=1e-12)
    assert (table.index.tolist(), table.columns.tolist()) == ([1, 2], ["w", "b"])
    assert run.changes([1, 2]).index.tolist() == [2]
    assert run.changes([0, 2]).empty


def test_the_best_round_has_the_lowest_loss_and_the_highest_score(tiny) -> None:
    numbers = [(3.0, 0.5, 9.0), (1.0, 0.7, 4.0), (1.0, 0.9, 5.0), None, (2.0, 0.9, 6.0)]
    scores = [of and Score(of[0], {"accuracy": of[1], "mae": of[2], "mine": of[2]}, 8) for of in numbers]
    run = tiny.run(*({"score": score} for score in scores), rounds=5)
    best = {score: run.best(score).number for score in ("loss", "accuracy", "mae", "mine")}
    assert best == {"loss": 2, "accuracy": 3, "mae": 2, "mine": 1}
    assert run.best().number == 2
    assert run.best("mine", lowest=True).number == 2
    assert run.best("accuracy").score.values["accuracy"] == 0.9
    with pytest.raises(UsageError, match=r"no score 'acuracy'; did you mean accuracy\?"):
        run.best("acuracy")


def test_the_lowest_loss_of_the_worst_partitions_is_the_best_and_so_is_the_lowest_spread(tiny) -> None:
    names = "worst_loss", "worst_accuracy", "spread_accuracy"
    scores = [Score(1.0, dict(zip(names, of, strict=True)), 8) for of in ((2.0, 0.5, 2.0), (1.0, 0.7, 1.0))]
    run = tiny.run(*({"score": score} for score in scores), rounds=2)
    assert [run.best(name).number for name in names] == [2, 2, 2]
    assert run.best("worst_loss", lowest=False).number == 1


def test_a_round_that_was_not_scored_is_not_the_best(tiny) -> None:
    with pytest.raises(RoundMissing, match="no round has the score loss"):
        tiny.run({"score": None}).best()


def test_it_is_known_of_every_score_which_is_the_best() -> None:
    """A new score is one of shares, or it is told that the lowest is the best."""
    assert set(SCORES) - set(LOWEST) == {"accuracy", "top5", "token_accuracy"}


def test_partitions_of_a_table_go_by_their_names(tiny) -> None:
    run = tiny.run({}, {}, names=("paris", "berlin"))
    table, numbers = run.divergence(), tiny.run({}, {}, name="old").divergence()
    assert table["cosine"].columns.tolist() == ["paris", "berlin"]
    assert table.columns.names == numbers.columns.names == ["measure", "partition"]
    np.testing.assert_array_equal(table, numbers)
