"""The steps of a round: refusals, scores, the reason to stop, and what happens when the user's own code fails."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from roundweave import open_run
from roundweave.storage.errors import RoundFailed, RoundweaveError, UsageError
from roundweave.storage.rounds.commits import Score
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.tensors import views
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.rounds.scoring import Tally, score, tally

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
class OwnApply(Sgd):
    def __call__(self, state, update):
        state = super().__call__(state, update)
        return {applied}
def algorithm():
    return Algorithm(Own(), Mean(), OwnApply(0.1))
"""


# Scores.

JUDGED = Objective(ModelSpec("linear", (2,), 2, "float32", seed=0), "cross_entropy", ("accuracy",))


def test_a_score_is_the_mean_over_all_held_out_examples() -> None:
    tallies = [Tally(2, {"loss": (6.0, 2), "accuracy": (1, 2)}), Tally(3, {"loss": (4.0, 3), "accuracy": (3, 3)})]
    assert score(JUDGED, tallies, 1) == Score(2.0, {"accuracy": 0.8}, 5)


def test_an_example_without_a_finite_loss_is_left_out_of_the_loss_alone() -> None:
    """Three examples, of which the second has an infinite loss and is read right, and four sound ones."""
    tallies = [Tally(3, {"loss": (1.5, 2), "accuracy": (2, 3)}, left_out=1)]
    tallies += [Tally(4, {"loss": (3.0, 4), "accuracy": (2, 4)}), Tally(2, left_out=2)]
    assert score(JUDGED, tallies, 1) == Score(0.75, {"accuracy": 4 / 7}, 6, 3)
    assert score(JUDGED, tallies[2:], 1) is None
    assert score(JUDGED, [], 1) is None


def test_only_examples_whose_numbers_are_infinite_are_left_out() -> None:
    """Logits of 200 examples, of which number 7 gives its label no chance, and number 9 is no number."""
    logits = torch.zeros(200, 2)
    logits[:130, 0], logits[7, 1], logits[9] = 1.0, math.inf, math.nan
    logits[7, 0] = -math.inf
    held_out = Examples(logits, torch.zeros(200, dtype=torch.long))
    network = torch.nn.Identity()
    network.scale = torch.nn.Parameter(torch.ones(()))
    scored = score(JUDGED, tally(JUDGED, network, held_out), 1)
    sure, even = math.log(1 + math.exp(-1)), math.log(2)
    assert scored.loss == pytest.approx((128 * sure + 70 * even) / 198)
    assert scored.values == {"accuracy": pytest.approx(198 / 199)}
    assert (scored.examples, scored.left_out) == (198, 2)


def test_numbers_that_are_no_classes_have_no_accuracy() -> None:
    assert score(replace(JUDGED, scores=()), [Tally(2, {"loss": (6.0, 2)})], 1) == Score(3.0, {}, 2)


def test_the_score_of_a_round_is_that_of_its_state_on_the_held_out_examples(train) -> None:
    from roundweave.tasks.data.sources.images import Digits
    from roundweave.tasks.data.splits.split import hold_out

    run = train(**SMALL, rounds=2)
    examples = Digits().load().train
    _, held = hold_out(np.arange(1797), examples.targets.numpy(), 0.1, 0)
    params = run.round(2).params
    outputs = examples.inputs[held].flatten(1) @ params["1.weight"].T + params["1.bias"]
    targets = examples.targets[held]
    found = run.round(2).score
    assert found.examples == len(held)
    assert found.loss == pytest.approx(cross_entropy(outputs, targets).item(), rel=1e-5)
    assert found.accuracy == (outputs.argmax(1) == targets).sum().item() / len(held)


# What is committed.


def test_a_commit_holds_the_verdict_on_every_update(train) -> None:
    run = train(**SMALL, rounds=2)
    commit = run.round(2).commit
    assert list(commit.updates) == [0, 1, 2]
    for partition, record in commit.updates.items():
        update = run.round(2).update(partition)
        assert record.digest == update_digest(update)
        assert record.weight == update.weight
        assert record.metrics.keys() == {"train_loss"}
    assert sum(record.weight for record in commit.updates.values()) == run.attributes["data"]["examples"]


def test_the_state_is_the_one_before_minus_the_weighted_mean_direction(train) -> None:
    run = train(**SMALL, rounds=2)
    before, after = (run.round(number).state.params["float32"].double() for number in (1, 2))
    updates = [run.round(2).update(partition) for partition in range(3)]
    total = sum(update.weight * update.direction["float32"].double() for update in updates)
    torch.testing.assert_close(after, before - total / sum(u.weight for u in updates), rtol=1e-6, atol=1e-7)


def test_scores_are_taken_every_so_many_rounds_and_after_the_last(train) -> None:
    run = train(**SMALL, rounds=5, evaluate_every=2)
    assert [run.round(number).score is not None for number in range(1, 6)] == [False, True, False, True, True]


def test_a_run_stops_where_its_target_is_reached(train) -> None:
    free = train(**SMALL, rounds=6)
    accuracies = [free.round(number).score.accuracy for number in range(1, 7)]
    target = accuracies[2]
    first = next(n for n, accuracy in enumerate(accuracies, start=1) if accuracy >= target)
    run = train(**SMALL, rounds=6, target_accuracy=target)
    assert (run.done, run.status) == (first, "complete")
    assert run.stop == f"accuracy {accuracies[first - 1]:.4f} has reached the target {target}"
    assert run.digest == free.round(first).commit.state


def test_a_run_stops_when_patience_is_over(train) -> None:
    """The rate is so large that the loss grows: round 1 is the best, or an early one."""
    run = train(**SMALL | {"local_steps": 1}, algorithm="fed_avg", lr=300.0, rounds=30, patience=3)
    losses = run.history()["loss"].tolist()[1:]
    best = int(np.argmin(losses))
    assert run.done == best + 1 + 3
    assert run.stop == f"3 scores without a better loss than {losses[best]:.6g}"
    assert run.round(-1).commit.best == losses[best]


# The user's own code.


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("replace(update, direction={'float32': torch.full_like(update.direction['float32'], 3e38)})", ""),
        ("1 / 0", "partition 0: its map failed with ZeroDivisionError: division by zero"),
        ("None", "partition 0"),
        ("replace(update, direction=None)", "partition 0"),
        ("replace(update, direction={'float32': update.direction['float32'].numpy()})", "partition 0"),
        ("replace(update, weight=0)", "weight 0 is no positive integer of 53 bits"),
        ("replace(update, weight=float('nan'))", "weight nan is no positive integer of 53 bits"),
        ("replace(update, carry={'undeclared': update.direction})", "undeclared"),
        ("replace(update, extras={'undeclared': update.direction})", "undeclared"),
    ],
)
def test_a_map_that_returns_no_sound_update_fails_the_round_by_name(train, own, returned, reason) -> None:
    """The first direction is finite, as is that of the other partition; their weighted sum is not."""
    path = own(OWN.format(returned=returned, applied="state"))
    with pytest.raises(RoundFailed, match=f"round 1.*{reason}"):
        train(algorithm=f"{path}:algorithm", model="logistic", partitions=2, rounds=1)


FAILING = """
import sys
from torch.nn.functional import cross_entropy
def deeper():
    return deeper()
def stop():
    raise KeyboardInterrupt
def loss(outputs, targets):
    if outputs.requires_grad == {training} and len(outputs) > 2:  # two are tried before round 1
        {how}
    return cross_entropy(outputs, targets)
"""
ENDINGS = {"sys.exit(3)": "SystemExit: 3", "deeper()": "RecursionError: maximum recursion depth exceeded"}


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize(
    ("training", "what"), [(True, "round 1: .*partition 0: its map"), (False, "round 0: scoring")]
)
def test_what_would_end_the_process_fails_the_round_in_one_line(train, own, how, training, what) -> None:
    path = own(FAILING.format(how=how, training=training))
    with pytest.raises(RoundFailed, match=f"{what} failed with {ENDINGS[how]}"):
        train(loss=f"{path}:loss", **SMALL, rounds=1)


def test_a_keyboard_interrupt_is_ctrl_c_where_signals_arrive_and_a_failure_elsewhere(train, own) -> None:
    fields = SMALL | {"loss": f"{own(FAILING.format(how='stop()', training=True))}:loss", "rounds": 1}
    with pytest.raises(KeyboardInterrupt):
        train(**fields)
    with (
        ThreadPoolExecutor() as pool,
        pytest.raises(RoundFailed, match="the map of partition 0 failed with KeyboardInterrupt"),
    ):
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


@pytest.mark.parametrize("how", RAISED)
def test_one_map_that_raises_is_refused_in_a_line_and_the_others_are_averaged(train, own, how: str) -> None:
    """Of 1618 examples in three partitions the last has 540, the others 539."""
    path = own(RAISING.replace("{how}", how))
    run = train(algorithm=f"{path}:algorithm", model="logistic", partitions=3, rounds=3)
    assert [sorted(run.round(n).refused) for n in (1, 2, 3)] == [[], [2], []]
    line = run.round(2).refused[2]
    assert re.match(f"its map failed with {RAISED[how]}", line)
    assert line.isprintable()
    assert len(line) < 350
    before, after = (run.round(n).state.params["float32"].double() for n in (1, 2))
    directions = [run.round(2).update(p).direction["float32"].double() for p in (0, 1)]
    torch.testing.assert_close(after, before - 0.1 * sum(directions) / 2, rtol=1e-6, atol=1e-7)
    assert open_run(run.path).replay("all").identical


def test_a_map_that_raises_once_costs_nothing(train, own, tmp_path) -> None:
    once = "if mark.exists(): mark.unlink(); raise ValueError('once')"
    fields = {
        "algorithm": f"{own(RAISING.replace('{how}', once))}:algorithm",
        "model": "logistic",
        "partitions": 3,
    }
    wanted = train(**fields, rounds=3, name="wanted")
    (tmp_path / "again").touch()
    run = train(**fields, rounds=3, name="run")
    assert not (tmp_path / "again").exists()
    assert run.digest == wanted.digest
    assert run.round(2).refused == {}


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("raise MemoryError('none left')", RoundFailed, "round 2: the map of partition 2 failed with MemoryError"),
        ("raise KeyboardInterrupt", KeyboardInterrupt, "^$"),
        ("raise UsageError('mu is no number')", UsageError, "mu is no number"),
    ],
)
def test_what_is_no_fault_of_a_partition_ends_the_run(train, own, how: str, error, says: str) -> None:
    path = own(RAISING.replace("{how}", how))
    with pytest.raises(error, match=says):
        train(algorithm=f"{path}:algorithm", model="logistic", partitions=3, rounds=3, name="run")
    assert open_run("run").done == 1


@pytest.mark.parametrize(
    "returned",
    [
        "replace(update, weight=np.int64(len(examples)))",
        "replace(update, weight=torch.tensor(len(examples)))",
        "replace(update, weight=len(examples) if examples.inputs[0, 0, 0, 0] > 5 else None)",
        "replace(update, metrics={'train_loss': torch.tensor(1.5)})",
        "replace(update, metrics={'train_loss': np.float32(1.5)})",
        "replace(update, metrics={'train_loss': 1.5, 'note': 'fine'})",
        "replace(update, metrics={'train_loss': 1.5, 'many': 10**400})",
    ],
)
def test_numbers_of_other_types_are_taken_or_refused_but_never_break_the_commit(train, own, returned: str) -> None:
    path = own(OWN.format(returned=returned, applied="state"))
    try:
        run = train(algorithm=f"{path}:algorithm", model="logistic", partitions=2, rounds=1, name="own")
    except RoundweaveError as error:
        assert "partition 0" in str(error)
    else:
        assert run.done == 1


def test_one_unsound_weight_among_sound_ones_is_refused_and_recorded(train, own) -> None:
    """Of 1618 examples in three partitions the last has 540, the others 539."""
    returned = "replace(update, weight=5.5 if len(examples) == 540 else update.weight)"
    path = own(OWN.format(returned=returned, applied="state"))
    run = train(algorithm=f"{path}:algorithm", model="logistic", partitions=3, rounds=1)
    assert run.round(1).commit.accepted == [0, 1]
    assert run.round(1).refused == {2: "weight 5.5 is no positive integer of 53 bits"}
    assert run.history().loc[1, "examples"] == 2 * 539


@pytest.mark.parametrize("applied", ["1 / 0", "replace(state, params={'float32': state.params['float32'][:-1]})"])
def test_an_apply_that_fails_fails_the_round_in_one_line(train, own, applied: str) -> None:
    path = own(OWN.format(returned="update", applied=applied))
    with pytest.raises(RoundweaveError):
        train(algorithm=f"{path}:algorithm", model="logistic", partitions=2, rounds=1)


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


@pytest.mark.parametrize("reduce", ["mean", "median", "trimmed_mean:1", "krum:1", "geometric_median"])
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


def test_whatever_a_map_reports_is_a_metric_of_its_own(train, own) -> None:
    returned = "replace(update, metrics={'train_loss': 1.0, 'gradient norm': float(len(examples))})"
    path = own(OWN.format(returned=returned, applied="state"))
    run = train(algorithm=f"{path}:algorithm", model="logistic", partitions=3, rounds=2)
    sizes = [record.weight for record in run.round(1).commit.updates.values()]
    mean = sum(size * size for size in sizes) / sum(sizes)
    assert run.history().loc[2, "gradient norm"] == pytest.approx(mean)


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


# The machine's settings.


CHOOSY = """
from dataclasses import dataclass
from roundweave import Algorithm, Gradient, Mean, Sgd
@dataclass(frozen=True)
class Choosy(Mean):
    def join(self, left, right):
        raise ValueError("no such neighbours")
def algorithm():
    return Algorithm(Gradient(), Choosy(), Sgd(0.1))
"""


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
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        train(**SMALL, rounds=1, threads=3)
    finally:
        torch.set_num_threads(before)
    assert threads
    assert set(threads) == {3}


def test_a_join_that_fails_is_told(train, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(CHOOSY)
    with pytest.raises(RoundFailed, match=r"round 1: the reduce failed with ValueError: no such neighbours"):
        train(model="logistic", partitions=3, rounds=1, algorithm=f"{tmp_path}/mine.py:algorithm")
