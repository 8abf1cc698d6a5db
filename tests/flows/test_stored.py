"""Stored runs as the facade gives them: networks are built again, and files hold the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import roundweave as rw
from flows.stored import Run
from storage.errors import ShapeMismatch
from storage.runs.checkpoints import read_checkpoint

MINE = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(64, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 10)
        self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)
    def forward(self, images):
        return self.head(self.norm(self.first(images.flatten(1))) * self.scale)
def model(width=5):
    return Net(width)
"""


@pytest.fixture(params=["built in", "own", "own, in bfloat16"])
def run(request, train, own, tmp_path: Path) -> Run:
    fields = {"model": "cnn", "model_options": {"channels": 2}}
    if request.param != "built in":
        fields = {"model": f"{own(MINE)}:model", "model_options": {"width": 7}}
    if "bfloat16" in request.param:
        fields["dtype"] = "bfloat16"
    train(**fields, partitions=2, rounds=2, name="first")
    return rw.open_run("first")


def assert_same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    assert some.keys() == others.keys()
    assert all(torch.equal(some[name], tensor) for name, tensor in others.items())


def test_a_rounds_network_has_its_weights_and_buffers(run: Run) -> None:
    for number in (0, 1, 2):
        network = run.round(number).network()
        assert not network.training
        assert_same(network.state_dict(), run.round(number).tensors)
    assert_same(run.network().state_dict(), run.round(2).tensors)


def test_the_network_scores_as_the_round_did(train) -> None:
    train(model="mlp", partitions=2, rounds=1, name="scored", held_out=0.5)
    run = rw.open_run("scored")
    partitions = rw.Partitions(rw.find_source("digits"), rw.Split(2), held_out=0.5)
    held = [partitions.load(0, partition).held_out for partition in (0, 1)]
    with torch.no_grad():
        right = sum((run.network()(part.inputs).argmax(1) == part.targets).sum().item() for part in held)
    assert right / sum(map(len, held)) == run.round(1).score.accuracy


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt"])
def test_a_round_is_saved_and_read_to_the_same_bits(run: Run, tmp_path: Path, name: str) -> None:
    run.round(1).save(tmp_path / name)
    assert_same(read_checkpoint(tmp_path / name), run.round(1).tensors)
    run.network().load_state_dict(read_checkpoint(tmp_path / name))


def test_a_place_that_is_no_checkpoint_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(rw.UsageError, match="ends in"):
        run.round(1).save(tmp_path / "a.txt")


def test_own_code_is_kept_when_its_file_has_changed_or_gone(train, own) -> None:
    path = own(MINE)
    train(model=f"{path}:model", partitions=2, rounds=1, name="kept")
    Path(path).unlink()
    assert_same(rw.open_run("kept").network().state_dict(), rw.open_run("kept").round(1).tensors)


def test_code_of_a_run_from_elsewhere_needs_trust(train, own, tmp_path: Path) -> None:
    train(model=f"{own(MINE)}:model", partitions=2, rounds=1, name="theirs", root=tmp_path / "elsewhere")
    run = rw.open_run(tmp_path / "elsewhere/theirs.zarr")
    with pytest.raises(rw.UsageError, match="holds code"):
        run.network()
    assert_same(run.network(trust=True).state_dict(), run.round(1).tensors)
    own_root = rw.open_run("theirs", root=tmp_path / "elsewhere")
    assert own_root.network().first.out_features == 5


def test_code_that_now_builds_another_network_is_said(train, own, monkeypatch) -> None:
    monkeypatch.setenv("WIDTH", "5")
    source = "import os\n" + MINE.replace("return Net(width)", "return Net(int(os.environ['WIDTH']))")
    train(model=f"{own(source)}:model", partitions=2, rounds=1, name="changing")
    monkeypatch.setenv("WIDTH", "6")
    with pytest.raises(ShapeMismatch, match="round 1 is of another architecture"):
        rw.open_run("changing").network()
