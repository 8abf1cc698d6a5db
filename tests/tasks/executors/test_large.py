"""Networks that are too large for the client's process are tried, bound and begun by a worker."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import save_file

from roundweave.storage.errors import CheckpointError, ModelError
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor

MINE = """
import os
from pathlib import Path
import roundweave
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.first, self.last = nn.Linear(64, hidden), nn.Linear(hidden, 10)
        with (Path(__file__).parent / "built.txt").open("a") as file:
            print(os.getpid(), file=file)
    def forward(self, inputs):
        return self.last(self.first(inputs.flatten(1)).relu())

class Own(Net):
    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)
    def forward(self, inputs, labels=None):
        logits = super().forward(inputs)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
        return {"loss": loss, "logits": logits}

class Half(roundweave.Sgd):
    pass

def halves():
    local = roundweave.LocalSteps(local_steps=2, momentum=0.5)
    return roundweave.Algorithm(local, roundweave.Mean(), Half(lr=0.5))

class Misfit(Net):
    def forward(self, inputs):
        return super().forward(inputs)[:, :7]
"""

SMALL = {"partitions": 3, "rounds": 2, "local_steps": 2}


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    """Have a network of a few kilobytes count as too large."""
    for place in ("roundweave.flows.planning.describing", "roundweave.flows.training.job"):
        monkeypatch.setattr(f"{place}.MOST_BYTES", 1000)


CARRIED = {"optimizer": "AdamW", "optimizer_state": "carried"}


@pytest.mark.parametrize(
    ("kind", "model", "given"),
    [(GraphExecutor, "Net", CARRIED), (GraphExecutor, "Own", {}), (RanksExecutor, "Own", {})],
)
@pytest.mark.thorough
def test_the_client_builds_no_large_network(train, client, own, tmp_path, monkeypatch, kind, model, given) -> None:
    fields = SMALL | given | {"model": f"{own(MINE)}:{model}"}
    run = train(kind(client), 2, **fields, name="large")
    builders = {int(pid) for pid in (tmp_path / "built.txt").read_text().split()}
    assert builders
    assert os.getpid() not in builders
    monkeypatch.undo()
    assert train(**fields, name="reference").digest == run.digest


def test_an_algorithm_of_ones_own_is_bound_by_a_worker(train, client, own, monkeypatch) -> None:
    file = own(MINE)
    fields = {"partitions": 3, "rounds": 2, "model": f"{file}:Net", "algorithm": f"{file}:halves"}
    run = train(GraphExecutor(client), 2, **fields, name="large")
    monkeypatch.undo()
    assert train(**fields, name="reference").digest == run.digest


def test_a_worker_says_what_does_not_fit(train, client, own, tmp_path) -> None:
    fields = SMALL | {"model": f"{own(MINE)}:Misfit"}
    with pytest.raises(ModelError, match="gives 7 outputs, but labels go up to 9"):
        train(GraphExecutor(client), **fields, name="large")
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.thorough
def test_a_large_network_begins_with_a_checkpoint(train, client, own, tmp_path) -> None:
    fields = SMALL | {"model": f"{own(MINE)}:Net"}
    first = train(GraphExecutor(client), **fields, name="first")
    file = tmp_path / "last.safetensors"
    save_file({name: torch.tensor(first[name][2].values) for name in first.round(2).params}, file)
    second = train(GraphExecutor(client), **fields, name="second", start_from=str(file))
    assert (second.round(0).params["first.weight"] == first.round(2).params["first.weight"]).all()
    with pytest.raises(CheckpointError, match=r"first\.(bias|weight)"):
        train(GraphExecutor(client), **fields, name="third", start_from=str(file), model_options={"hidden": 8})


@pytest.mark.thorough
def test_a_large_run_is_resumed_and_forked(train, client, own) -> None:
    fields = SMALL | {"model": f"{own(MINE)}:Net", "outer_momentum": 0.5, "algorithm": "fed_avg"}
    whole = train(GraphExecutor(client), **fields | {"rounds": 4}, name="whole")
    train(GraphExecutor(client), **fields, name="parts")
    assert train(GraphExecutor(client), **fields | {"rounds": 4}, name="parts").digest == whole.digest
    fork = train(GraphExecutor(client), **fields, name="fork", start_from="parts@4")
    assert (fork.round(0).params["last.bias"] == whole.round(4).params["last.bias"]).all()
