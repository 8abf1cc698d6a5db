"""A score and a loss are those of all held-out examples at once, whatever the partitions and the executor."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional

from tasks.clusters.connecting import connect, local_cluster
from tasks.data.sources.digits import Digits
from tasks.data.splits import hold_out
from tasks.executors.gang import GangExecutor
from tasks.executors.graph import GraphExecutor
from tasks.executors.inline import InlineExecutor

OWN = """
import torch
from sklearn.metrics import f1_score
WEIGHT = torch.arange(1.0, 11.0)
def f1(outputs, targets):
    return f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro")
def near(outputs, targets): return (outputs.argmax(1) - targets).abs() <= 1
def weighted(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, weight=WEIGHT, ignore_index=3)
"""


@pytest.mark.parametrize("loss", ["cross_entropy", "weighted"])
def test_no_number_depends_on_partitions_or_executors(own, train, loss: str) -> None:
    file = own(OWN)
    loss = f"{file}:{loss}" if loss == "weighted" else loss
    scores = ("accuracy", f"{file}:f1", f"{file}:near")
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
    assert found[0].values["near"] == ((outputs.argmax(1) - targets).abs() <= 1).double().mean().item()
    weight = {"weight": torch.arange(1.0, 11.0), "ignore_index": 3} if loss != "cross_entropy" else {}
    assert found[0].loss == pytest.approx(functional.cross_entropy(outputs, targets, **weight).item(), rel=1e-6)


def held_out_of(run, fraction: float) -> tuple[torch.Tensor, torch.Tensor]:
    examples = Digits().load().train
    _, held = hold_out(examples.targets.numpy(), fraction, 0)
    params = run.round(1).params
    return examples.inputs[held].flatten(1) @ params["1.weight"].T + params["1.bias"], examples.targets[held]
