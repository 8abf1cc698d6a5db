"""A checkpoint in shards is one checkpoint, and its index leads nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from roundweave.storage.checkpoints.opening import open_checkpoint
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import CheckpointError
from tests.storage.checkpoints.reading import read_checkpoint

TENSORS = {"fc.weight": torch.arange(6.0).reshape(3, 2), "fc.bias": torch.ones(3), "seen": torch.tensor(7)}
Index = Callable[..., Path]


@pytest.fixture
def index(tmp_path) -> Index:
    """Two shards and their index, whose map of tensors to shards may be changed."""

    def write(suffix: str = ".safetensors", **changes: object) -> Path:
        names = [f"model-0000{i}-of-00002{suffix}" for i in (1, 2)]
        write_checkpoint(tmp_path / names[0], {"fc.weight": TENSORS["fc.weight"]})
        write_checkpoint(tmp_path / names[1], {n: TENSORS[n] for n in ("fc.bias", "seen")})
        places = {"fc.weight": names[0], "fc.bias": names[1], "seen": names[1]}
        content = {"metadata": {"total_size": 44}, "weight_map": places | changes}
        path = tmp_path / f"model{suffix}.index.json"
        path.write_text(json.dumps(content))
        return path

    return write


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards_are_read_as_one(index, suffix) -> None:
    path = index(suffix)
    for place in [path] + [path.parent] * (suffix == ".safetensors"):
        found = read_checkpoint(place)
        assert sorted(found) == sorted(TENSORS)
        assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    return str(caught.value)


@pytest.mark.parametrize(
    "shard",
    ["../model-00001-of-00002.safetensors", "/etc/passwd", "sub/a.safetensors", "..", "", "a\0.pt", "notes.txt"],
)
def test_an_index_leads_nowhere_else(index, tmp_path, shard) -> None:
    (tmp_path / "notes.txt").touch()
    assert "no checkpoint beside it" in refused(index(**{"fc.weight": shard}))
    path, linked = index(), tmp_path / "model-00001-of-00002.safetensors"
    linked.rename(tmp_path / "elsewhere.safetensors")
    linked.symlink_to(tmp_path / "elsewhere.safetensors")
    assert "is a link" in refused(path)


def test_what_is_missing_is_named(index) -> None:
    assert "names the shard gone.pt, which is not beside it; copy all shards" in refused(index(more="gone.pt"))
    told = refused(index(more="model-00001-of-00002.safetensors"))
    assert "do not agree on 'more'; copy both again" in told


MAPS = ['{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}']


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", "7", *MAPS, "[" * 10**6], ids=len)
def test_what_is_no_index_is_one_line(tmp_path, content) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    assert "model.safetensors.index.json" in refused(path)
