"""The types of a merged network's tensors: those of the networks, unless another is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import roundweave as rw
from tests.storage.checkpoints.reading import read_checkpoint
from tests.tasks.merging import mine
from tests.tasks.merging.second import second

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def written(folder: Path, seed: int, weights: torch.dtype, biases: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    drawn = mine.layers().state_dict()
    state = {name: t.to(weights if name.endswith("weight") else biases) for name, t in drawn.items()}
    save_file(state, folder / f"{seed}.safetensors")
    return state


@pytest.mark.parametrize("suffix", ["safetensors", *second("pt")])
@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((BF16, BF16), (BF16, BF16), (BF16, BF16)),
        ((BF16, FP32), (BF16, FP32), (BF16, FP32)),  # weights of one type, biases of another
        ((BF16, BF16), (FP16, BF16), (FP32, BF16)),  # neither holds the numbers of the other
        ((FP64, FP64), (FP32, FP32), (FP64, FP64)),
    ],
)
def test_a_merged_file_has_the_types_that_hold_both_networks(tmp_path, first, second, wanted, suffix) -> None:
    states = [written(tmp_path, seed, *types) for seed, types in enumerate((first, second))]
    places, out = tuple(str(tmp_path / f"{seed}.safetensors") for seed in (0, 1)), tmp_path / f"out.{suffix}"
    fields = {"networks": places, "model": f"{mine.__file__}:layers", "input": "2x6", "match": "none"}
    rw.merge(rw.MergeConfig(**fields, out=str(out), executor="inline"))
    for name, tensor in read_checkpoint(out).items():
        dtype = wanted[0] if name.endswith("weight") else wanted[1]
        mean = ((states[0][name].double() + states[1][name].double()) / 2).to(dtype)
        assert (name, tensor.dtype) == (name, dtype)
        torch.testing.assert_close(tensor, mean, rtol=1e-6 if dtype in (FP32, FP64) else 0, atol=0)
