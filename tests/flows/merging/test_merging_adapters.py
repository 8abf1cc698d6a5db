"""Adapters of low rank are merged to one whose change of each layer is the mean of theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import roundweave as rw
from roundweave.storage.errors import CheckpointError, UsageError
from tests.flows.merging.tiny_folders import Folder, folder, made, quiet

__all__ = ["folder", "quiet"]
RANK, ALPHA = 3, 6
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "base_model_name_or_path": None, "bias": "none"}
CONFIG |= {
    "target_modules": ["q_proj", "v_proj"],
    "task_type": None,
    "inference_mode": True,
    "fan_in_fan_out": False,
}
LAYERS = [f"base_model.model.model.layers.{n}.self_attn.{name}" for n in (0, 1) for name in ("q_proj", "v_proj")]
Adapter = Callable[..., str]


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    """Write an adapter of a tiny Llama to a folder and return the folder."""

    def write(name: str, seed: int = 0, **more: object) -> str:
        generator = torch.Generator().manual_seed(seed)
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(CONFIG | more))
        tensors = {}
        for layer in LAYERS:
            out = 32 if layer.endswith("q_proj") else 16
            tensors[f"{layer}.lora_A.weight"] = torch.randn(RANK, 32, generator=generator)
            tensors[f"{layer}.lora_B.weight"] = torch.randn(out, RANK, generator=generator)
        save_file(tensors, tmp_path / name / "adapter_model.safetensors")
        return str(tmp_path / name)

    return write


def changes(place: str | Path) -> list[torch.Tensor]:
    """What an adapter adds to the weight of each layer, (out, in)."""
    config = json.loads((Path(place) / "adapter_config.json").read_text())
    tensors = load_file(Path(place) / "adapter_model.safetensors")
    scale = config["lora_alpha"] / config["r"]
    return [scale * tensors[f"{layer}.lora_B.weight"] @ tensors[f"{layer}.lora_A.weight"] for layer in LAYERS]


def merge(*networks: str, **fields: object) -> None:
    rw.merge(rw.MergeConfig(networks=networks, executor="inline", **fields))


@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (2, 1, 1)])
def test_the_change_is_the_mean_of_the_changes(adapter, tmp_path, weights) -> None:
    places = [adapter(f"a{seed}", seed) for seed in range(len(weights))]
    merge(*places, coefficients=weights, out=str(tmp_path / "out"))
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (RANK * len(weights), ALPHA * len(weights))
    each = zip(*map(changes, places), strict=True)
    for change, parts in zip(changes(tmp_path / "out"), each, strict=True):
        mean = sum(w * part for w, part in zip(weights, parts, strict=True)) / sum(weights)
        assert (change - mean).abs().max() <= 1e-6 * mean.abs().max()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, for what peft asks of it
def test_peft_opens_it(adapter, folder: Folder, tmp_path, monkeypatch) -> None:
    peft = pytest.importorskip("peft")
    merge(adapter("a", 0), adapter("b", 1), out=str(tmp_path / "out"))
    network = made("llama")
    before = network.model.layers[0].self_attn.q_proj.weight.clone()
    opened = peft.PeftModel.from_pretrained(network, tmp_path / "out").merge_and_unload()
    change = opened.model.layers[0].self_attn.q_proj.weight - before
    torch.testing.assert_close(change, changes(tmp_path / "out")[0], rtol=1e-4, atol=1e-4)


def test_adapters_that_do_not_fit_are_one_clear_line(adapter, folder, tmp_path) -> None:
    first, out = adapter("a"), {"out": str(tmp_path / "out")}

    def refused(*networks: str, **fields: object) -> str:
        with pytest.raises((CheckpointError, UsageError)) as caught:
            merge(*networks, **out | fields)
        return str(caught.value)

    for name, other in {
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": "b",
        "target_modules": ["q_proj"],
    }.items():
        assert f"{name} is {other}, but {CONFIG[name]}" in refused(
            first, adapter(f"other_{name}", 1, **{name: other})
        )
    assert "has use_dora" in refused(first, adapter("dora", 1, use_dora=True))
    assert "has lora_bias" in refused(first, adapter("bias", 1, lora_bias=True))
    for begun in ("pissa", "pissa_niter_4", "olora"):
        assert f"has init_lora_weights = {begun}, which" in refused(
            first, adapter(begun, 1, init_lora_weights=begun)
        )
    bare = Path(adapter("bare", 1))
    config = json.loads((bare / "adapter_config.json").read_text())
    (bare / "adapter_config.json").write_text(json.dumps({n: v for n, v in config.items() if n != "lora_alpha"}))
    assert "has no lora_alpha; save the adapter again" in refused(first, str(bare))
    assert "is of no LORA" in refused(first, adapter("other", 1, peft_type="IA3"))
    assert "is no adapter, and" in refused(first, folder("full", "llama"))
    same = adapter("b", 1, target_modules=["v_proj", "q_proj"])
    assert "give --out FOLDER" in refused(first, same, out=None)
    assert "nothing else" in refused(first, same, match="weights")
    both = folder("both", "llama")
    (Path(both) / "adapter_model.safetensors").write_bytes(
        (Path(first) / "adapter_model.safetensors").read_bytes()
    )
    assert "holds a network, model.safetensors, and an adapter" in refused(both, folder("more", "llama"))
    merge(first, same, **out)
