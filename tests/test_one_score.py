"""A score and a loss are those of all held-out examples at once, whatever the partitions and the executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from roundweave.storage.errors import ModelError
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.data.splits.split import hold_out
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.rows import but_first

OWN = """
import torch
from sklearn.metrics import average_precision_score, f1_score
from torchmetrics import Metric
from torchmetrics.classification import MulticlassCalibrationError, MulticlassF1Score
WEIGHT = torch.arange(1.0, 11.0)
def f1(outputs, targets):
    return f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro")
def precision(outputs, targets):
    if len(targets.unique()) < 10:
        raise ValueError("needs examples of each class")
    return average_precision_score(targets.numpy(), outputs.numpy(), average="macro")
def near(outputs, targets): return (outputs.argmax(1) - targets).abs() <= 1
metric = MulticlassF1Score(num_classes=10, average="macro")
def calibration(): return MulticlassCalibrationError(num_classes=10)
def weighted(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, weight=WEIGHT, ignore_index=3)
def together(outputs, targets): return torch.full(targets.shape, len(targets))
def each(outputs, targets): return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

class Ordered(Metric):
    '''The mean distance of neighbours: a metric of one's own, which the order of examples decides.'''
    full_state_update = False
    def __init__(self):
        super().__init__()
        self.add_state("seen", [], dist_reduce_fx="cat")
    def update(self, outputs, targets): self.seen.append(outputs[:, 0])
    def compute(self):
        seen = torch.cat(self.seen) if isinstance(self.seen, list) else self.seen
        return seen.diff().abs().double().mean()
def ordered(): return Ordered()

class Averaged(Ordered):
    '''Merged by a mean of means, which is no mean of all.'''
    def __init__(self):
        Metric.__init__(self)
        self.add_state("seen", torch.tensor(0.0), dist_reduce_fx="mean")
    def update(self, outputs, targets): self.seen = self.seen + outputs.abs().sum()
    def compute(self): return self.seen
def averaged(): return Averaged()

class Full(Ordered):
    full_state_update = True
def full(): return Full()
def classes(): return MulticlassF1Score(num_classes=10, average=None)
def loss(outputs, targets): return (outputs.argmax(1) == targets)
seconds = loss
"""
SCORES = ("f1", "precision", "near", "metric", "calibration", "ordered")

DIGITS = {"data": "digits", "model": "linear", "held_out": 0.7}


@pytest.mark.dear("one number of all outputs, by four partitionings and executors")
@pytest.mark.parametrize("loss", but_first(["weighted"], ["cross_entropy", "each"]))
def test_no_number_depends_on_partitions_or_executors(own, train, client, loss: str) -> None:
    from sklearn.metrics import average_precision_score, f1_score  # seconds, that only this process is to wait for
    from torchmetrics.functional.classification import multiclass_calibration_error

    file = own(OWN)
    given = loss if loss == "cross_entropy" else f"{file}:{loss}"
    scores = ("accuracy", *(f"{file}:{name}" for name in SCORES))
    common = {"loss": given, "scores": scores, "rounds": 1, "algorithm": "sync_sgd", "lr": 1e-30, **DIGITS}
    found = []
    on_workers = [(kind(client), 5) for kind in (GraphExecutor, RanksExecutor)]
    for executor, partitions in [*((InlineExecutor(), partitions) for partitions in (1, 5)), *on_workers]:
        run = train(executor, **common, partitions=partitions, name=f"{type(executor).__name__}{partitions}")
        found += [run.round(0).score, run.round(1).score]  # a step of 1e-30 leaves the network as it is
    assert all(each == found[0] for each in found), found
    outputs, targets = held_out_of(run, 0.7)
    weight = {"weight": torch.arange(1.0, 11.0), "ignore_index": 3} if loss == "weighted" else {}
    assert found[0].loss == pytest.approx(functional.cross_entropy(outputs, targets, **weight).item(), rel=1e-6)
    values = found[0].values
    assert values["f1"] == f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro")
    assert values["precision"] == average_precision_score(targets.numpy(), outputs.numpy(), average="macro")
    assert values["metric"] == pytest.approx(values["f1"], rel=1e-6)
    calibration = multiclass_calibration_error(outputs, targets, num_classes=10).item()
    assert values["calibration"] == pytest.approx(calibration, rel=1e-5)
    assert values["ordered"] == pytest.approx(outputs[:, 0].diff().abs().mean().item(), rel=1e-5)
    assert values["near"] == ((outputs.argmax(1) - targets).abs() <= 1).double().mean().item()


OF_EACH = """
import torch
def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20 + 10 * partition, 3, generator=generator)
    return inputs, (inputs[:, 1] > 0).long()
def shared(partition, partitions):
    return data(partition, partitions), data(5, partitions)
"""


@pytest.mark.parametrize(
    ("algorithm", "every", "data"),
    but_first(
        [("sync_sgd", 2, "data"), ("async_sgd", 1, "shared")],
        [("sync_sgd", 2, "shared"), ("async_sgd", 1, "data")],
    ),
)
def test_round_0_is_scored_by_the_partitions_of_round_1(own, train, client, algorithm, every, data) -> None:
    fields = {"data": f"{own(OF_EACH)}:{data}", "model": "linear", "partitions": 4, "held_out": 0.2, "cohort": 2}
    fields |= {"algorithm": algorithm, "lr": 1e-30, "rounds": every, "evaluate_every": every}
    run = train(**fields, name="here")
    there = train(GraphExecutor(client), **fields, name="there")
    wanted = run.round(every).score  # a step of 1e-30 leaves the network as it is
    if data == "data" and algorithm == "sync_sgd":  # others score round 2, on other examples
        held_out = sum((4, 6, 8, 10)[partition] for partition in run.round(1).commit.updates)
        wanted = replace(run.round(0).score, examples=held_out)
    assert run.round(0).score == there.round(0).score == wanted


def test_a_warm_start_begins_with_the_score_of_its_round(train, tmp_path) -> None:
    fields = DIGITS | {"loss": "cross_entropy"}
    parent = train(**fields, rounds=3, evaluate_every=2, lr=0.1, name="parent")
    outputs, targets = held_out_of(parent, 0.7, 0)
    begun = parent.round(0)
    assert begun.score.accuracy == (outputs.argmax(1) == targets).double().mean().item()
    assert begun.score.loss == pytest.approx(functional.cross_entropy(outputs, targets).item(), rel=1e-6)
    assert (begun.commit.best, begun.commit.since_best) == (None, 0)
    assert parent.history()["accuracy"].notna().tolist() == [True, False, True, True]
    parent.round(3).save(tmp_path / "three.pt")
    for start in ("parent@3", str(tmp_path / "three.pt")):
        # So large a step makes the network worse, which the best round and the words for it show.
        worse = train(**fields, rounds=1, lr=1e3, start_from=start, name=f"from-{len(start)}")
        assert worse.round(0).score == parent.round(3).score
        assert (worse.best().number, worse.round("best").number) == (0, 0)
    assert train(**fields | {"held_out": 0}, rounds=1, name="all").round(0).score is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"scores": ("f1",)}, r"f1 is one number of all outputs; .* 1258 held-out .* take .* a metric of torch"),
        ({"loss": "weighted"}, "loss is one number of all outputs; .*; give a number for each example, or hold"),
        ({"scores": ("calibration",)}, "calibration is a metric that keeps .* choose one that keeps sums"),
    ],
)
def test_outputs_that_are_too_many_to_gather_are_refused(own, train, monkeypatch, fields, says: str) -> None:
    monkeypatch.setattr("roundweave.tasks.networks.trying.fit.MOST_GATHERED", 5000)
    with pytest.raises(ModelError, match=says):
        train(**wholly(own(OWN), fields), **DIGITS, rounds=1)


def test_large_outputs_are_scored_a_few_at_a_time_to_the_same_numbers(own, train, monkeypatch) -> None:
    fields = wholly(own(OWN), {"scores": (*SCORES, "together")})
    whole = train(**fields, **DIGITS, rounds=1).round(1).score
    monkeypatch.setattr("roundweave.tasks.networks.trying.fit.MOST_SCORED", 395)  # 39 examples, 10 outputs each
    few = train(**fields, **DIGITS, rounds=1).round(1).score
    assert (whole.values.pop("together") > 100, few.values.pop("together") <= 39) == (True, True)
    assert (few.examples, few.loss) == (whole.examples, pytest.approx(whole.loss, rel=1e-12))
    assert few.values == pytest.approx(whole.values, rel=1e-6)


def test_what_keeps_sums_is_not_too_much(own, train, monkeypatch) -> None:
    monkeypatch.setattr("roundweave.tasks.networks.trying.fit.MOST_GATHERED", 5000)
    run = train(**wholly(own(OWN), {"loss": "each", "scores": ("near", "metric")}), **DIGITS, rounds=1)
    assert set(run.round(1).score.values) == {"near", "metric"}


@pytest.mark.parametrize(
    ("score", "says"),
    [
        ("full", "full is a metric whose batches cannot be merged: RuntimeError: .*; give a function of outputs"),
        ("averaged", r"averaged is a metric whose batches cannot be merged: the batches give .*; give"),
        ("classes", r"classes must compute one number, not a tensor \(10,\); choose its average"),
        ("seconds", "the name 'seconds' of a score is taken by another number; rename it"),
        ("loss", "the name 'loss' of a score is taken by another number; rename it"),
    ],
)
def test_a_score_that_has_no_one_number_is_refused_at_the_start(own, train, score: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        train(**wholly(own(OWN), {"scores": (score,)}), **DIGITS, rounds=1)


def wholly(file: str, fields: dict) -> dict:
    """Fields with the functions of a file, and a loss that fits."""
    scores = tuple(f"{file}:{name}" for name in fields.get("scores", ())) or None
    return {"scores": scores, "loss": f"{file}:{fields['loss']}" if "loss" in fields else "cross_entropy"}


def held_out_of(run, fraction: float, round: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    examples = Digits().load().train
    _, held = hold_out(np.arange(len(examples)), examples.targets.numpy(), fraction, 0)
    params = run.round(round).params
    return examples.inputs[held].flatten(1) @ params["1.weight"].T + params["1.bias"], examples.targets[held]
