"""Rows of heads are put in one order of labels, and a row of the mean is that of who has the label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import roundweave as rw
from roundweave.storage.errors import ModelError, UsageError
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.networks.pretrained import inputs_by_kind
from tests.flows.merging.tiny_folders import Folder, folder, made, quiet, transformers

__all__ = ["folder", "quiet"]
ONE, OTHER = ["cat", "dog", "owl"], ["owl", "emu", "cat", "elk"]


def named(labels: list[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {name: number for number, name in enumerate(labels)}}


def merge(*networks: str, **fields: object) -> None:
    rw.merge(rw.MergeConfig(networks=networks, executor="inline", match="none", **fields))


@pytest.mark.parametrize("kind", ["bert", "vit"])
@pytest.mark.parametrize("choice", ["union", "first"])
def test_a_row_of_a_label_is_the_mean_of_those_who_have_it(folder: Folder, tmp_path, kind, choice) -> None:
    pair = folder("one", kind, **named(ONE)), folder("other", kind, seed=1, **named(OTHER))
    merge(*pair, labels=choice, coefficients=(1, 3), out=str(tmp_path / "out"))
    one, other, merged = (
        getattr(
            transformers, json.loads((Path(place) / "config.json").read_text())["architectures"][0]
        ).from_pretrained(place)
        for place in (*pair, tmp_path / "out")
    )
    every = [*ONE, "emu", "elk"] if choice == "union" else ONE
    assert merged.config.id2label == dict(enumerate(every))
    assert merged.config.label2id == {name: number for number, name in enumerate(every)}
    for kind_of_tensor in ("weight", "bias"):
        a, b, rows = (getattr(network.classifier, kind_of_tensor) for network in (one, other, merged))
        mean = {"cat": (a[0] + 3 * b[2]) / 4, "dog": a[1], "owl": (a[2] + 3 * b[0]) / 4, "emu": b[1], "elk": b[3]}
        torch.testing.assert_close(rows, torch.stack([mean[name] for name in every]))
    a, b, rest = ({n: t for n, t in m.state_dict().items() if "classifier" not in n} for m in (one, other, merged))
    torch.testing.assert_close(rest, {name: (tensor + 3 * b[name]) / 4 for name, tensor in a.items()})


def test_units_are_matched_though_labels_differ(folder: Folder, tmp_path) -> None:
    """The merge of a network with itself under other labels is itself, with the rows of both."""
    pair = [folder(name, "bert", **named(labels)) for name, labels in (("one", ONE[:2]), ("other", ONE[1:]))]
    out = str(tmp_path / "out")
    rw.merge(rw.MergeConfig(networks=tuple(pair), executor="inline", match="weights", labels="union", out=out))
    one, merged = (transformers.BertForSequenceClassification.from_pretrained(place) for place in (pair[0], out))
    tokens = torch.tensor([[3, 4, 5], [6, 7, 8]])
    with torch.no_grad():
        assert merged(tokens).logits.shape == (2, 3)
        torch.testing.assert_close(merged(tokens).logits[:, 0], one(tokens).logits[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_a_row_of_one_network_alone_has_its_units_in_the_order_of_all(folder: Folder, tmp_path, kind) -> None:
    """Two networks are one whose units were permuted, and each has some of its labels: the merge has all."""
    whole, every = made(kind, **named(["cat", "dog", "owl"])), {}
    units = find_units(whole, inputs_by_kind(whole))
    permuted = units.permute(whole.state_dict(), units.random(torch.Generator().manual_seed(1)))
    for name, state, rows in (("one", whole.state_dict(), [0, 1]), ("other", permuted, [2, 1])):
        part = made(kind, **named([["cat", "dog", "owl"][row] for row in rows]))
        part.load_state_dict({n: t[rows] if n.startswith("classifier.") else t for n, t in state.items()})
        every[folder(name, part)] = part
    out = str(tmp_path / "out")
    rw.merge(rw.MergeConfig(networks=tuple(every), executor="inline", match="weights", labels="union", out=out))
    merged = type(whole).from_pretrained(out)
    with torch.no_grad():
        given, wanted = (network.eval()(**inputs_by_kind(whole)).logits for network in (merged, whole))
    assert (given - wanted).abs().max() <= 1e-5 * wanted.std()


def test_other_labels_are_refused_without_a_choice_or_names(folder: Folder, tmp_path) -> None:
    out = str(tmp_path / "out")
    one, other = folder("one", **named(ONE)), folder("other", **named(OTHER))
    turned, unnamed = folder("turned", **named(ONE[::-1])), folder("unnamed", num_labels=4)
    for second in (other, turned, unnamed):
        with pytest.raises(UsageError, match="have other labels; give --labels union, or first"):
            merge(one, second, out=out)
    with pytest.raises(UsageError, match="nobody named LABEL_0"):
        merge(one, unnamed, out=out, labels="union")
    with pytest.raises(UsageError, match="labels is for folders"):
        merge(f"{one}/model.safetensors", other, out=out, labels="first")
    for more in ({"average": "slerp"}, {"distil": 5}):
        with pytest.raises(UsageError, match="by their mean; leave"):
            merge(one, other, out=out, labels="union", **more)
    (tmp_path / "own.py").write_text("import torch\ndef net(**options): return torch.nn.Linear(2, 2)\n")
    with pytest.raises(ModelError, match="Linear does not say which rows are of tokens and labels; give no model"):
        merge(one, other, out=out, labels="union", model=f"{tmp_path}/own.py:net", input="2x2")
    with pytest.raises(UsageError, match="files that name all tokens and labels; give --out FOLDER"):
        merge(one, other, out=f"{out}.safetensors", labels="union")
    with pytest.raises(UsageError, match="no examples in common"):
        merge(one, other, out=out, labels="union", data="digits")
