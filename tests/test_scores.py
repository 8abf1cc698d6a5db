"""A score and a loss are those of all held-out examples at once, whatever the partitions and the executor."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional
from torchmetrics.functional.classification import multiclass_calibration_error

from storage.errors import ModelError
from tasks.clusters.connecting import connect
from tasks.data.sources.digits import Digits
from tasks.data.splits import hold_out
from tasks.executors.gang import GangExecutor
from tasks.executors.graph import GraphExecutor
from tasks.executors.inline import InlineExecutor

OWN = """
import torch
from sklearn.metrics import f1_score
from torchmetrics.classification import MulticlassCalibrationError, MulticlassF1Score
WEIGHT = torch.arange(1.0, 11.0)
def f1(outputs, targets):
    return f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro")
def near(outputs, targets): return (outputs.argmax(1) - targets).abs() <= 1
metric = MulticlassF1Score(num_classes=10, average="macro")
def calibration(): return MulticlassCalibrationError(num_classes=10)
def weighted(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, weight=WEIGHT, ignore_index=3)
"""


@pytest.mark.parametrize("loss", ["cross_entropy", "weighted"])
def test_no_number_depends_on_partitions_or_executors(own, train, loss: str) -> None:
    file = own(OWN)
    loss = f"{file}:{loss}" if loss == "weighted" else loss
    scores = ("accuracy", f"{file}:f1", f"{file}:near", f"{file}:metric", f"{file}:calibration")
    common = {"scores": scores, "loss": loss, "rounds": 1, "data": "digits", "model": "linear", "held_out": 0.7}
    found = []
    with connect(None, 2) as client:
        for executor in (InlineExecutor(), GraphExecutor(client), GangExecutor(client)):
            for partitions in (1, 2, 5):
                name = f"{type(executor).__name__}{partitions}"
                run = train(executor, **common, partitions=partitions, algorithm="sync_sgd", lr=1e-30, name=name)
                found.append(run.round(1).score)
    assert all(each == found[0] for each in found), found
    outputs, targets = held_out_of(run, 0.7)
    assert found[0].values["f1"] == f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro")
    assert found[0].values["metric"] == pytest.approx(found[0].values["f1"], rel=1e-6)
    calibration = multiclass_calibration_error(outputs, targets, num_classes=10).item()
    assert found[0].values["calibration"] == pytest.approx(calibration, rel=1e-5)
    assert found[0].values["near"] == ((outputs.argmax(1) - targets).abs() <= 1).double().mean().item()
    weight = {"weight": torch.arange(1.0, 11.0), "ignore_index": 3} if loss != "cross_entropy" else {}
    assert found[0].loss == pytest.approx(functional.cross_entropy(outputs, targets, **weight).item(), rel=1e-6)


def test_an_asynchronous_server_scores_by_the_same_rule(own, train) -> None:
    scores = (f"{own(OWN)}:f1", f"{own(OWN)}:metric")
    run = train(
        algorithm="async_sgd",
        loss="cross_entropy",
        rounds=3,
        data="digits",
        model="linear",
        held_out=0.7,
        scores=scores,
    )
    outputs, targets = held_out_of(run, 0.7, 3)
    f1 = f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro")
    assert run.round(3).score.values["f1"] == f1
    assert run.round(3).score.values["metric"] == pytest.approx(f1, rel=1e-6)


def test_outputs_that_are_too_many_to_gather_refuse_a_score_and_not_a_loss(own, train, monkeypatch) -> None:
    monkeypatch.setattr("tasks.networks.fit.MOST_GATHERED", 1000)
    monkeypatch.setattr("tasks.networks.scores.MOST_GATHERED", 1000)
    file, common = own(OWN), {"rounds": 1, "data": "digits", "model": "linear", "held_out": 0.7, "lr": 1e-30}
    with pytest.raises(ModelError, match=r"score f1 is one number of all outputs; .* give a number for each"):
        train(scores=(f"{file}:f1",), **common, name="refused")
    scores = ("accuracy", f"{file}:near", f"{file}:metric")
    one, many = (
        train(
            loss=f"{file}:weighted",
            scores=scores,
            partitions=count,
            algorithm="sync_sgd",
            **common,
            name=f"n{count}",
        )
        for count in (1, 5)
    )
    assert one.round(1).score == many.round(1).score


def test_a_model_that_gives_an_output_class_says_what_to_do(own, train) -> None:
    file = own(
        "import torch\nfrom transformers.modeling_outputs import SequenceClassifierOutput\n"
        "class Net(torch.nn.Linear):\n    def __init__(self): super().__init__(64, 10)\n"
        "    def forward(self, inputs): return SequenceClassifierOutput(logits=inputs)\n"
    )
    with pytest.raises(ModelError, match="gives a SequenceClassifierOutput, and outputs must be one tensor; wrap"):
        train(model=f"{file}:Net", data="digits", rounds=1)


def held_out_of(run, fraction: float, round: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    examples = Digits().load().train
    _, held = hold_out(examples.targets.numpy(), fraction, 0)
    params = run.round(round).params
    return examples.inputs[held].flatten(1) @ params["1.weight"].T + params["1.bias"], examples.targets[held]
