"""The steps of a round: what is committed, what is refused, and what happens when the user's own code fails."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from roundweave import Run, open_run, views
from roundweave.storage.errors import RoundFailed, RoundweaveError, UsageError
from roundweave.storage.values.digests import update_digest
from tests.rows import but_first
from tests.tasks.executors.deeds import FAILING

SMALL = {"model": "logistic", "partitions": 3, "local_steps": 2}

OWN = """
from dataclasses import dataclass, replace
import numpy as np
import torch
from roundweave import Algorithm, Gradient, Map, Mean, Sgd, Update
@dataclass(frozen=True)
class Own(Map):
    def __call__(self, objective, state, examples, carry, seed):
        update = Gradient()(objective, state, examples, carry, seed)
        return {returned}
@dataclass(frozen=True)
class OwnMean(Mean):
    def join(self, left, right):
        node = super().join(left, right)
        return {joined}
@dataclass(frozen=True)
class OwnApply(Sgd):
    def __call__(self, state, update):
        state = super().__call__(state, update)
        return {applied}
def algorithm():
    return Algorithm(Own(), OwnMean(), OwnApply(0.1))
"""


@pytest.fixture
def trained_by(train, own) -> Callable[..., Run]:
    """Train three partitions, by default for a round, with parts that return these expressions."""

    def run(returned: str = "update", joined: str = "node", applied: str = "state", **fields: Any) -> Run:
        path = own(OWN.format(returned=returned, joined=joined, applied=applied))
        small = {"algorithm": f"{path}:algorithm", "model": "logistic", "partitions": 3, "rounds": 1}
        return train(**small | fields)

    return run


# What is committed.


def test_a_commit_holds_the_verdict_on_every_update(stored) -> None:
    run = stored("plain")
    commit = run.round(2).commit
    assert list(commit.updates) == [0, 1, 2]
    for partition, record in commit.updates.items():
        update = run.round(2).update(partition)
        assert record.digest == update_digest(update)
        assert record.weight == update.weight
        assert record.metrics.keys() == {"train_loss"}
    assert sum(record.weight for record in commit.updates.values()) == run.attributes["data"]["examples"]


# The user's own code.


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("replace(update, direction={'float32': torch.full_like(update.direction['float32'], 3e38)})", ""),
        ("None", "partition 0"),
        ("replace(update, direction={'float32': update.direction['float32'].numpy()})", "partition 0"),
        ("replace(update, carry={'undeclared': update.direction})", "undeclared"),
    ],
)
def test_a_map_that_returns_no_sound_update_fails_the_round_by_name(trained_by, returned, reason) -> None:
    """The first direction is finite, as are those of the other partitions; their weighted sum is not."""
    with pytest.raises(RoundFailed, match=f"round 1.*{reason}"):
        trained_by(returned)


@pytest.mark.parametrize(
    ("part", "does", "error"),
    [
        ("joined", "1 / 0", "round 1: the reduce failed with ZeroDivisionError: division by zero"),
        ("applied", "1 / 0", "the reduce or apply failed with ZeroDivisionError: division by zero"),
        ("applied", "replace(state, params={'float32': state.params['float32'][:-1]})", "1: the new state is"),
    ],
)
def test_a_reduce_or_apply_that_fails_fails_the_round_in_one_line(trained_by, part, does, error) -> None:
    with pytest.raises(RoundweaveError, match=error):
        trained_by(**{part: does})


@pytest.mark.parametrize(
    ("how", "says"), but_first([("sys.exit(3)", "SystemExit: 3")], [("deeper()", "RecursionError: maximum")])
)
def test_what_would_end_the_process_as_it_scores_fails_the_round_in_one_line(train, own, how, says) -> None:
    path = own(FAILING.format(how=how, training=False))
    with pytest.raises(RoundFailed, match=f"round 0: scoring failed with {says}"):
        train(loss=f"{path}:loss", **SMALL, rounds=1)


def test_a_keyboard_interrupt_is_ctrl_c_where_signals_arrive_and_a_failure_elsewhere(train, own) -> None:
    fields = SMALL | {"loss": f"{own(FAILING.format(how='stop()', training=True))}:loss", "rounds": 1}
    with pytest.raises(KeyboardInterrupt):
        train(**fields)
    failed = pytest.raises(RoundFailed, match="the map of partition 0 failed with KeyboardInterrupt")
    with ThreadPoolExecutor() as pool, failed:
        pool.submit(train, **fields).result()


RAISING = """
import sys
from dataclasses import dataclass
from pathlib import Path
from roundweave import Algorithm, Gradient, Map, Mean, Sgd, UsageError
class Odd(Exception):
    def __init__(self, one, two): pass
    def __str__(self): raise RuntimeError
    def __reduce__(self): raise RuntimeError
@dataclass(frozen=True)
class Own(Map):
    def __call__(self, objective, state, examples, carry, seed):
        mark = Path(__file__).with_name("again")
        if len(examples) == 540 and state.round == 1:  # the last partition, in round 2
            {how}
        return Gradient()(objective, state, examples, carry, seed)
def algorithm():
    return Algorithm(Own(), Mean(), Sgd(0.1))
"""
RAISED = {
    "1 / 0": r"ZeroDivisionError: division by zero \(line 15 of .*mine.py\)",
    "raise ValueError('hot\\x1b[2J\\n' * 2000)": r"ValueError: hot\\x1b\[2J \(line",
    "raise ValueError('z' * 10**6)": "ValueError: z{200,300}$",
    "raise Odd(1, 2)": "Odd$",
    "sys.exit(3)": r"SystemExit: 3 \(line",
}


@pytest.mark.parametrize("how", but_first([*RAISED][:2], RAISED))
def test_one_map_that_raises_is_refused_in_a_line_and_the_others_are_averaged(train, own, how: str) -> None:
    """Of 1618 examples in three partitions the last has 540, the others 539."""
    path = own(RAISING.replace("{how}", how))
    run = train(algorithm=f"{path}:algorithm", model="logistic", partitions=3, rounds=3)
    assert [sorted(run.round(n).refused) for n in (1, 2, 3)] == [[], [2], []]
    line = run.round(2).refused[2]
    assert re.match(f"its map failed with {RAISED[how]}", line)
    assert line.isprintable()
    assert len(line) < 350
    assert run.history().loc[2, "examples"] == 2 * 539
    before, after = (run.round(n).state.params["float32"].double() for n in (1, 2))
    directions = [run.round(2).update(p).direction["float32"].double() for p in (0, 1)]
    torch.testing.assert_close(after, before - 0.1 * sum(directions) / 2, rtol=1e-6, atol=1e-7)
    assert open_run(run.path).replay("all").identical


def test_a_map_that_raises_once_costs_nothing(train, own, tmp_path) -> None:
    once = "if mark.exists(): mark.unlink(); raise ValueError('once')"
    fields = {"model": "logistic", "partitions": 3, "rounds": 2}
    fields |= {"algorithm": f"{own(RAISING.replace('{how}', once))}:algorithm"}
    wanted = train(**fields, name="wanted")
    (tmp_path / "again").touch()
    run = train(**fields, name="run")
    assert not (tmp_path / "again").exists()
    assert run.digest == wanted.digest
    assert run.round(2).refused == {}


def test_what_is_no_fault_of_a_partition_ends_the_run(train, own) -> None:
    path = own(RAISING.replace("{how}", "raise UsageError('mu is no number')"))
    with pytest.raises(UsageError, match="mu is no number"):
        train(algorithm=f"{path}:algorithm", model="logistic", partitions=3, rounds=3, name="run")
    assert open_run("run").done == 1


@pytest.mark.parametrize(
    "returned",
    [
        "replace(update, weight=np.int64(len(examples)))",
        "replace(update, metrics={'train_loss': torch.tensor(1.5)})",
        "replace(update, metrics={'train_loss': np.float32(1.5)})",
        "replace(update, weight=torch.tensor(len(examples)), metrics={'train_loss': 1.5, 'note': 'fine'})",
    ],
)
def test_numbers_of_other_types_are_taken_or_refused_but_never_break_the_commit(trained_by, returned: str) -> None:
    try:
        run = trained_by(returned)
    except RoundweaveError as error:
        assert "partition 0" in str(error)
    else:
        assert run.done == 1


MASKED = """
import torch
class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 8), torch.nn.Linear(8, 10)
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))
    def forward(self, inputs):
        hidden = self.norm(self.first(inputs.flatten(1)))
        return self.second(hidden @ self.mask.softmax(1))
"""


@pytest.mark.parametrize("reduce", but_first(["mean", "geometric_median"], ["median", "krum:1"]))
def test_a_mask_of_infinities_stays_what_it_is_under_every_reduce(train, own, reduce: str) -> None:
    """The statistics beside it are what they are where the mask is rebuilt and not kept."""
    path = own(MASKED)
    fields = {"partitions": 5, "local_steps": 2, "rounds": 2, "reduce": reduce}
    run = train(model=f"{path}:Masked", name="masked", **fields)
    path = own(MASKED.replace(".triu(1))", ".triu(1), persistent=False)"), "rebuilt")
    plain = train(model=f"{path}:Masked", name="plain", **fields)
    assert run.round(2).refused == {}
    after = views(run._store.schema.layout.buffers, run.round(2).state.buffers)
    assert torch.equal(after["mask"], torch.full((8, 8), -math.inf).triu(1))
    for name in ("norm.weight", "norm.running_mean"):
        np.testing.assert_allclose(run[name][2], plain[name][2], rtol=1e-5, atol=1e-7)


NOISY = """
import random
import numpy as np
import torch
from torch.nn.functional import cross_entropy
def loss(outputs, targets):
    return cross_entropy(outputs, targets) * (1 + random.random() + np.random.rand() + torch.rand(()))
"""


def test_noise_of_numpy_and_python_in_a_map_comes_from_the_seed_round_and_partition(train, own) -> None:
    path = own(NOISY)
    fields = SMALL | {"loss": f"{path}:loss", "rounds": 2}
    runs = [train(**fields, seed=seed, name=f"run-{number}") for number, seed in enumerate((0, 0, 1))]
    assert runs[0].digest == runs[1].digest != runs[2].digest
    losses = {u.metrics["train_loss"] for n in (1, 2) for u in runs[0].round(n).commit.updates.values()}
    assert len(losses) == 6


# Metrics and scores by name.


def test_whatever_a_map_reports_is_a_metric_of_its_own(trained_by) -> None:
    returned = "replace(update, metrics={'train_loss': 1.0, 'gradient norm': float(len(examples))})"
    run = trained_by(returned, rounds=2)
    sizes = [record.weight for record in run.round(1).commit.updates.values()]
    mean = sum(size * size for size in sizes) / sum(sizes)
    assert run.history().loc[2, "gradient norm"] == pytest.approx(mean)


# The machine's settings.


def test_all_of_a_round_is_computed_with_the_threads_of_the_work(train, monkeypatch) -> None:
    """Also what looks at updates and joins them: it would wait for a core that writes, and may change bits."""
    kernels, threads = (torch.Tensor.isfinite, torch.Tensor.add), []

    def watched(kernel):
        def call(*arguments, **options):
            threads.append(torch.get_num_threads())
            return kernel(*arguments, **options)

        return call

    for kernel in kernels:
        monkeypatch.setattr(torch.Tensor, kernel.__name__, watched(kernel))
    train(**SMALL, rounds=1, threads=3)
    assert set(threads) == {3}


def test_scores_are_taken_every_so_many_rounds_and_after_the_last(train) -> None:
    run = train(**SMALL, rounds=5, evaluate_every=2)
    assert [run.round(number).score is not None for number in range(1, 6)] == [False, True, False, True, True]


def test_batchnorm_buffers_are_averaged_over_the_accepted(train) -> None:
    run = train(model="cnn", partitions=2, local_steps=2, rounds=1)
    layout = run._store.schema.layout.buffers
    updates = [run.round(1).update(partition) for partition in (0, 1)]
    after = views(layout, run.round(1).state.buffers)
    one, two = (views(layout, update.buffers) for update in updates)
    weights = [update.weight for update in updates]
    assert after["norm1.num_batches_tracked"].item() == 2
    wanted = (weights[0] * one["norm1.running_mean"] + weights[1] * two["norm1.running_mean"]) / sum(weights)
    torch.testing.assert_close(after["norm1.running_mean"], wanted)


def test_scores_are_summed_over_partitions_exactly(train, own) -> None:
    source = """
import torch
def margin(outputs, targets):
    top = outputs.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]
def one(outputs, targets):
    return 1.0
"""
    path = own(source)
    scores = ("accuracy", "top5", f"{path}:margin", f"{path}:one")
    runs = [train(**SMALL | {"partitions": n}, rounds=1, scores=scores, name=f"of-{n}") for n in (1, 3)]
    for run in runs:
        values = run.round(1).score.values
        assert list(values) == ["accuracy", "top5", "margin", "one"]
        assert values["one"] == 1.0
        assert values["accuracy"] <= values["top5"]
        assert run.history().loc[1, "margin"] == values["margin"] > 0
    examples = runs[0].round(1).score.examples
    accuracy = runs[1].round(1).score.values["accuracy"] * examples
    assert accuracy == pytest.approx(round(accuracy), abs=1e-9)
