"""The vectors of spectral norms fit the weights of means: the norm is that of a singular value decomposition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundweave import MergeConfig, Run, merge
from roundweave.tasks.networks.spectral import converge
from tests.rows import but_first

CODE = """
import torch
from torch import nn
from torch.nn.utils import spectral_norm as old
from torch.nn.utils.parametrizations import spectral_norm as new
def data():
    inputs = torch.randn(400, 20, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, :2].sum(1) > 0.3).long()
def normed_of_new(): return nn.Sequential(new(nn.Linear(20, 32)), nn.ReLU(), new(nn.Linear(32, 2), dim=1))
def normed_of_old(): return nn.Sequential(old(nn.Linear(20, 32)), nn.ReLU(), old(nn.Linear(32, 2), dim=1))
"""
pytestmark = pytest.mark.usefixtures("without_prefect")
MODELS = pytest.mark.parametrize("model", but_first(["normed_of_new"], ["normed_of_old"]))
SHARDS = {"split": "shards:1"}
SERVED = {"algorithm": "fed_buff", "buffer": 4}


def norms(network: nn.Module) -> list[float]:
    """The largest singular value of each layer's weight as the network computes it, which is 1 if vectors fit."""
    network(torch.zeros(1, 20))
    return [torch.linalg.svdvals(network[layer].weight.detach())[0].item() for layer in (0, 2)]


def experiment(file: str, model: str, **more: object) -> dict:
    return {"data": f"{file}:data", "model": f"{file}:{model}", "local_epochs": 5, "lr": 1.0, **more}


@pytest.mark.parametrize(
    ("model", "more"),
    but_first(
        [("normed_of_new", SHARDS), ("normed_of_old", SERVED)],
        [("normed_of_old", SHARDS), ("normed_of_new", SERVED)],
    ),
)
def test_the_norm_of_a_mean_of_networks_is_one(own, train, model: str, more: dict) -> None:
    run = train(**experiment(own(CODE), model, rounds=2, partitions=4, **more))
    assert norms(run.round(2).network(trust=True)) == pytest.approx([1, 1], rel=1e-4)
    sent = run.round(2).update(0).buffers["float32"]
    assert not torch.equal(sent, run.round(2).state.buffers["float32"])


@MODELS
def test_the_vectors_of_a_single_partition_are_its_own(own, train, model: str) -> None:
    run = train(**experiment(own(CODE), model, rounds=1, partitions=1))
    assert torch.equal(run.round(1).update(0).buffers["float32"], run.round(1).state.buffers["float32"])


@MODELS
def test_the_norm_of_a_merged_network_is_one(own, train, tmp_path, model: str) -> None:
    file, places = own(CODE), []
    for seed in (1, 2):
        run: Run = train(**experiment(file, model, rounds=1, partitions=1, seed=seed, name=f"of-{seed}"))
        places.append(f"{run.path}@1")
    out = tmp_path / "merged.pt"
    merge(MergeConfig(networks=places, model=f"{file}:{model}", input="2x20", match="none", out=str(out)))
    network = run.model(trust=True).build()
    network.load_state_dict(torch.load(out))
    assert norms(network.eval()) == pytest.approx([1, 1], rel=1e-4)


def test_a_network_without_spectral_norms_has_nothing_to_iterate() -> None:
    assert not converge(nn.Linear(2, 2))
