"""Adapters of low rank are merged to one whose change of each layer is the mean of theirs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from roundweave.storage.errors import CheckpointError, UsageError
from tests.flows.merging.tiny_folders import Folder, folder, made, merge, quiet

__all__ = ["folder", "quiet"]
RANK, ALPHA = 3, 6
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "base_model_name_or_path": None, "bias": "none"}
CONFIG |= {"target_modules": ["q_proj", "v_proj"], "task_type": None}
CONFIG |= {"inference_mode": True, "fan_in_fan_out": False}
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


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, for what peft asks of it
def test_peft_opens_it(adapter, folder: Folder, tmp_path, monkeypatch) -> None:
    peft = pytest.importorskip("peft")
    merge(adapter("a", 0), adapter("b", 1), out=str(tmp_path / "out"))
    network = made("llama")
    before = network.model.layers[0].self_attn.q_proj.weight.clone()
    opened = peft.PeftModel.from_pretrained(network, tmp_path / "out").merge_and_unload()
    change = opened.model.layers[0].self_attn.q_proj.weight - before
    torch.testing.assert_close(change, changes(tmp_path / "out")[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"r": 4}, "r is 4, but 3"),
        ({"lora_alpha": 8}, "lora_alpha is 8, but 6"),
        ({"base_model_name_or_path": "b"}, "base_model_name_or_path is b, but None"),
        ({"target_modules": ["q_proj"]}, r"target_modules is \['q_proj'\], but"),
        ({"use_dora": True}, "has use_dora"),
        ({"lora_bias": True}, "has lora_bias"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "has target_parameters"),
        ({"of_next_year": {"rank": 2}}, "has of_next_year"),
        ({"init_lora_weights": "pissa_niter_4"}, "has init_lora_weights = pissa_niter_4, which"),
        ({"init_lora_weights": "olora"}, "has init_lora_weights = olora, which"),
        ({"lora_alpha": None}, "has no lora_alpha; save the adapter again"),
        ({"peft_type": "IA3"}, "is no LoRA"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(adapter, tmp_path, more, words) -> None:
    first, other = adapter("a"), Path(adapter("other", 1, **more))
    if None in more.values():
        kept = {name: value for name, value in CONFIG.items() if name not in more}
        (other / "adapter_config.json").write_text(json.dumps(kept))
    with pytest.raises((CheckpointError, UsageError), match=words):
        merge(first, str(other), out=str(tmp_path / "out"))


def test_adapters_are_merged_with_adapters_into_a_folder(adapter, folder, tmp_path) -> None:
    first, same = adapter("a"), adapter("b", 1, target_modules=["v_proj", "q_proj"])
    full, both = folder("full", "llama"), Path(folder("both", "llama"))
    shutil.copy(f"{first}/adapter_model.safetensors", both)
    out = {"out": str(tmp_path / "out")}
    for networks, fields, words in (
        ((first, full), out, "is no adapter, and"),
        ((first, same), {}, "give --out FOLDER"),
        ((first, same), out | {"match": "weights"}, "coefficients alone"),
        (
            (first, same),
            out | {"average": "mean", "coefficients": (1, 1), "normalize": False},
            "coefficients alone",
        ),
        ((str(both), full), out, "holds a network, model.safetensors, and an adapter"),
    ):
        with pytest.raises((CheckpointError, UsageError), match=words):
            merge(*networks, **fields)
    merge(first, same, **out)
