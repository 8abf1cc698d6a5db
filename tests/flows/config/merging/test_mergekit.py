"""mergekit's configurations: what each key means here, and that none is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from roundweave.flows.config.merging.mergekit import read_mergekit
from roundweave.storage.errors import UsageError


def read(folder: Path, text: str) -> dict[str, object]:
    (folder / "config.yml").write_text(text)
    return read_mergekit(folder / "config.yml")


LINEAR = """merge_method: linear
models:
  - {model: a, parameters: {weight: 1}}
  - {model: b, parameters: {weight: 3}}
"""
TIES = "merge_method: ties\nbase_model: base\nmodels:\n  - model: base\n  - {model: a, parameters: {weight: 1}}\n"
SLERP = """
merge_method: slerp
base_model: b
models:
  - model: a
  - model: b
parameters:
  t:
    - filter: self_attn
      value: [0, 0.5, 1]
    - value: 5e-1
dtype: bfloat16
"""


def test_linear(tmp_path) -> None:
    wanted = {"match": "none", "average": "mean", "networks": ("a", "b"), "coefficients": (1, 3)}
    assert read(tmp_path, LINEAR) == wanted
    more = read(tmp_path, LINEAR + "base_model: b\nparameters: {normalize: false}\n")
    # The base is only where a folder's other files come from: it is first.
    assert more == wanted | {"networks": ("b", "a"), "coefficients": (3, 1), "normalize": False}


def test_the_base_of_task_vectors_is_none_of_the_networks(tmp_path) -> None:
    found = read(tmp_path, TIES + "parameters: {lambda: 0.5, density: 0.3}\n")
    assert (found["networks"], found["base"], found["coefficients"]) == (("a",), "base", (1,))
    assert (found["scaling"], found["density"]) == (0.5, (0.3,))
    assert read(tmp_path, TIES)["density"] == (1.0,)  # mergekit's default, which trims nothing


def test_slerp_goes_from_its_base(tmp_path) -> None:
    found = read(tmp_path, SLERP)
    assert (found["networks"], found["dtype"]) == (("b", "a"), "bfloat16")
    assert found["t"] == ({"filter": "self_attn", "value": [0, 0.5, 1]}, {"value": "5e-1"})


def test_the_first_number_of_a_gradient_is_that_of_what_lies_after_the_layers(tmp_path) -> None:
    """As in mergekit, which reads what is before and after them at t = 0."""
    place = str(tmp_path / "a.safetensors")
    names = ("embed_tokens", "layers.0.norm", "layers.1.norm", "norm")
    save_file({f"{name}.weight": torch.zeros(1) for name in names}, place)
    found = read(tmp_path, LINEAR.replace("model: a", f"model: {place}").replace("weight: 1", "weight: [0.2, 1]"))
    assert found["coefficients"] == (({"filter": "=norm.weight", "value": 0.2}, {"value": [0.2, 1]}), 3)


def test_rules_of_a_model_come_before_those_of_all(tmp_path) -> None:
    text = """
merge_method: task_arithmetic
base_model: base
models:
  - {model: a, parameters: {weight: [{filter: mlp, value: 0.1}]}}
  - model: b
parameters: {weight: 0.7}
"""
    assert read(tmp_path, text)["coefficients"] == (({"filter": "mlp", "value": 0.1}, {"value": 0.7}), 0.7)


SLICES = """
merge_method: slerp
base_model: {0}
slices:
  - sources:
      - {{model: {0}, layer_range: [0, {1}]}}
      - {{model: {0}, layer_range: [0, {1}]}}
parameters: {{t: 0.5}}
"""


def test_one_slice_of_all_layers_is_whole_networks(tmp_path) -> None:
    place = str(tmp_path / "a.safetensors")
    save_file({f"layers.{i}.weight": torch.zeros(1) for i in range(12)}, place)
    assert read(tmp_path, SLICES.format(place, 12))["networks"] == (place, place)
    with pytest.raises(UsageError, match=r"layer_range \[0, 8\]: .* has 12 layers, and a merge needs all"):
        read(tmp_path, SLICES.format(place, 8))


PASSTHROUGH = """
merge_method: passthrough
dtype: bfloat16
slices:
  - sources: [{model: a, layer_range: [0, 8]}]
  - sources: [{model: b, layer_range: [4, 12]}]
"""


def test_passthrough_is_slices(tmp_path) -> None:
    slices = [{"network": "a", "layers": (0, 8)}, {"network": "b", "layers": (4, 12)}]
    found = read(tmp_path, PASSTHROUGH)
    assert found == {"match": "none", "slices": slices, "dtype": "bfloat16"}
    assert read(tmp_path, PASSTHROUGH + "base_model: a\n") == found
    rules = "parameters: {scale: [{filter: o_proj, value: 0.0}]}"
    scaled = PASSTHROUGH.replace("[4, 12]}", f"[4, 12], {rules}}}") + "parameters: {scale: 2}\n"
    wanted = ({"filter": "o_proj", "value": 0.0}, {"value": 2}, {"value": 1.0})
    assert read(tmp_path, scaled)["slices"] == [slices[0] | {"scale": 2}, slices[1] | {"scale": wanted}]


def test_what_changes_no_number_is_no_matter(tmp_path) -> None:
    assert read(tmp_path, "parameters: {int8_mask: true}\n" + LINEAR) == read(tmp_path, LINEAR)


@pytest.mark.parametrize(
    ("text", "vocabulary"),
    [
        ("tokenizer_source: union\n" + LINEAR, "union"),
        ("tokenizer_source: base\n" + LINEAR, "first"),
        ("tokenizer_source: base\nbase_model: c\n" + LINEAR.replace("linear", "ties"), "base"),
    ],
)
def test_the_source_of_the_tokenizer_is_a_vocabulary(tmp_path, text, vocabulary) -> None:
    assert read(tmp_path, text)["vocabulary"] == vocabulary


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokenizer_source: c\n" + LINEAR, "config.yml: tokenizer_source = 'c'"),
        ("tokenizer: {source: union}\n" + LINEAR, "key 'tokenizer' of mergekit is not read here"),
        (
            "parameter: {normalize: true}\n" + LINEAR,
            "key 'parameter' of .* not read here; did you mean parameters?",
        ),
        ("parameters: {lamda: 1}\n" + LINEAR, "parameter 'lamda' of .* not read here; did you mean lambda?"),
        (LINEAR.replace("linear", "breadcrumbs"), "merge_method 'breadcrumbs' of .* those that are: linear"),
        (LINEAR.replace("weight: 3", "gamma: 3"), "parameter 'gamma' of .* those that are: weight, density"),
        (LINEAR.replace("{weight: 3}", "{}"), "b has no weight; mean needs one for each model"),
        ("base_model: c\n" + LINEAR, "base_model c is none of the models, and linear takes no other"),
        ("merge_method: linear\n" + LINEAR, "merge_method is there twice"),
        (PASSTHROUGH + "base_model: b\n", "passthrough takes slices, and no base_model but"),
        (PASSTHROUGH + "parameters: {weight: 2}\n", "passthrough's parameter 'weight' of .* not read here"),
        (PASSTHROUGH.replace(", layer_range: [0, 8]", ""), "slices of one source each, with its layer_range"),
        (LINEAR.replace("linear", "passthrough"), "passthrough takes slices"),
        ("merge_method: linear\n", "give either models or slices"),
        ("merge_method: [linear\n", "cannot read .*config.yml"),
        ("!!python/object/apply:os.getcwd []\n", "cannot read .*config.yml"),
        ("linear\n", "is no configuration of mergekit"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path, text, message) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text)
