"""Folders of transformers whose layers are put together anew: what the new network computes, in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import roundweave as rw
from roundweave.flows.config.files import read_recipe
from roundweave.flows.merging.flow import merge_flow
from roundweave.flows.merging.preparing import plan_merge
from roundweave.storage.errors import RoundweaveError
from tests.flows.command.in_process import said
from tests.flows.merging.tiny_folders import folder, made, quiet, transformers
from tests.rows import second

__all__ = ["folder", "quiet"]

TOKENS = torch.tensor([[3, 5, 7, 11]])


def logits(folder: str | Path) -> torch.Tensor:
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return network.eval()(TOKENS).logits


def merged(out: Path, *slices: tuple[str, int, int], **more: object) -> Path:
    parts = tuple({"network": place, "layers": (first, end)} for place, first, end in slices)
    rw.merge(rw.MergeConfig(slices=parts, out=f"{out}/", executor="inline", **more))
    return out


def test_prefect_takes_the_plan_as_the_parameters_of_a_flow(folder) -> None:
    parts = tuple({"network": folder(name, "llama", seed), "layers": (0, 1)} for seed, name in enumerate("ab"))
    plan = plan_merge(rw.MergeConfig(slices=parts, out="out/", executor="inline"))
    assert merge_flow.validate_parameters({"config": plan.config})["config"] == plan.config


@pytest.mark.parametrize(("kind", "stack"), [("llama", "model.layers"), *second(("gpt2", "transformer.h"))])
def test_the_result_computes_with_the_layers_in_their_order(folder, tmp_path, kind, stack) -> None:
    """By hand: the first network, whose list of layers is replaced, and whose end is that of the last one."""
    networks = [made(kind, seed) for seed in (0, 1)]
    a, b = (folder(name, network) for name, network in zip("ab", networks, strict=True))
    out = merged(tmp_path / "out", (a, 0, 2), (b, 1, 2), (b, 0, 2))
    key = "num_hidden_layers" if kind == "llama" else "n_layer"
    assert json.loads((out / "config.json").read_text())[key] == 5
    wanted = made(kind, 2, **{key: 5})
    state = wanted.state_dict()
    for new, (network, old) in enumerate([(0, 0), (0, 1), (1, 1), (1, 0), (1, 1)]):
        layer = networks[network].get_submodule(f"{stack}.{old}").state_dict()
        state |= {f"{stack}.{new}.{name}": tensor for name, tensor in layer.items()}
    for name in (name for name in state if not name.startswith(f"{stack}.")):
        before = any(each in name for each in ("embed_tokens", "wte", "wpe"))
        state[name] = networks[0 if before else 1].state_dict()[name]
    wanted.load_state_dict(state)
    if kind == "gpt2":  # its head is tied to its embedding
        wanted.tie_weights()
        wanted.transformer.wte.weight.data.copy_(networks[0].transformer.wte.weight)
    with torch.no_grad():
        torch.testing.assert_close(logits(out), wanted.eval()(TOKENS).logits)


def test_networks_of_other_depths_give_each_layer_what_its_own_configuration_says_of_it(folder, tmp_path) -> None:
    window = {"use_sliding_window": True, "sliding_window": 4}
    a = folder("a", "qwen2", **window, max_window_layers=1)
    b = folder("b", "qwen2", 1, **window, num_hidden_layers=3, max_window_layers=2)
    out = merged(tmp_path / "out", (b, 1, 3), (a, 0, 2))
    config = json.loads((out / "config.json").read_text())
    assert config["layer_types"] == [f"{kind}_attention" for kind in ("full", "sliding", "full", "sliding")]
    assert config["num_hidden_layers"] == 4 and logits(out).isfinite().all()


YAML = """
merge_method: passthrough
slices:
  - sources: [{model: a, layer_range: [0, 2]}]
  - sources:
      - model: b
        layer_range: [1, 2]
"""
TOML = """
slices = [
    { network = "a", layers = [0, 2] },
    { network = "b", layers = [1, 2] },
]
"""


def test_toml_and_yaml_on_the_command_line_give_the_same_file(folder, tmp_path, monkeypatch, capsys) -> None:
    for seed, name in enumerate("ab"):
        folder(name, "llama", seed)
    monkeypatch.chdir(tmp_path)
    for name, text in (("stack.yml", YAML), ("stack.toml", TOML)):
        Path(name).write_text(text)
        said(capsys, "merge", name, "--out", f"{name}.out/", "--executor", "inline")
    files = [(tmp_path / f"{name}.out" / "model.safetensors").read_bytes() for name in ("stack.yml", "stack.toml")]
    assert files[0] == files[1]
    monkeypatch.chdir(tmp_path.parent)  # the paths of a TOML file go from where it is
    config = rw.MergeConfig(
        **read_recipe(str(tmp_path / "stack.toml")), out=f"{tmp_path}/there/", executor="inline"
    )
    assert config.networks == (str(tmp_path / "a"), str(tmp_path / "b"))


def test_networks_of_two_stacks_or_of_other_functions_are_refused(folder, tmp_path) -> None:
    t5 = folder("t5", "t5")
    with pytest.raises(RoundweaveError, match="one stack of layers, as model"):
        merged(tmp_path / "out", (t5, 0, 1))
    a, b = folder("a", "llama"), folder("b", "llama", 1, num_attention_heads=8)
    with pytest.raises(RoundweaveError, match="head_dim is 4, but 8 in"):
        merged(tmp_path / "out", (a, 0, 1), (b, 0, 1))
    one, other = (folder(each, "bert", id2label={0: each, 1: "no"}) for each in ("cat", "dog"))
    with pytest.raises(RoundweaveError, match="label"):
        merged(tmp_path / "out", (one, 0, 1), (other, 0, 1))
    assert not (tmp_path / "out").exists()
