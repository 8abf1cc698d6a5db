"""Rows of heads are put in one order of labels, and a row of the mean is that of who has the label."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roundweave.storage.errors import ModelError, UsageError
from tests.flows.merging.tiny_folders import KINDS, Folder, folder, merge, quiet, transformers

__all__ = ["folder", "quiet"]
pytestmark = pytest.mark.usefixtures("without_prefect")
ONE, OTHER = ["cat", "dog", "owl"], ["owl", "emu", "cat", "elk"]


def named(labels: list[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {name: number for number, name in enumerate(labels)}}


@pytest.mark.parametrize(("kind", "choice"), [("bert", "union"), ("vit", "first")])
def test_a_row_of_a_label_is_the_mean_of_those_who_have_it(folder: Folder, tmp_path, kind, choice) -> None:
    pair = folder("one", kind, **named(ONE)), folder("other", kind, seed=1, **named(OTHER))
    merge(*pair, match="none", labels=choice, coefficients=(1, 3), out=str(tmp_path / "out"))
    architecture = getattr(transformers, KINDS[kind][0])
    one, other, merged = (architecture.from_pretrained(place) for place in (*pair, tmp_path / "out"))
    every = [*ONE, "emu", "elk"] if choice == "union" else ONE
    assert merged.config.id2label == dict(enumerate(every))
    assert merged.config.label2id == {name: number for number, name in enumerate(every)}
    for kind_of_tensor in ("weight", "bias"):
        a, b, rows = (getattr(network.classifier, kind_of_tensor) for network in (one, other, merged))
        mean = {"cat": (a[0] + 3 * b[2]) / 4, "dog": a[1], "owl": (a[2] + 3 * b[0]) / 4, "emu": b[1], "elk": b[3]}
        torch.testing.assert_close(rows, torch.stack([mean[name] for name in every]))
    a, b, rest = ({n: t for n, t in m.state_dict().items() if "classifier" not in n} for m in (one, other, merged))
    torch.testing.assert_close(rest, {name: (tensor + 3 * b[name]) / 4 for name, tensor in a.items()})


def test_other_labels_are_refused_without_a_choice_or_names(folder: Folder, tmp_path) -> None:
    one, other = folder("one", **named(ONE)), folder("other", **named(OTHER))
    turned, unnamed = folder("turned", **named(ONE[::-1])), folder("unnamed", num_labels=4)
    own = tmp_path / "own.py"
    own.write_text("import torch\ndef net(**options): return torch.nn.Linear(2, 2)\n")
    union, choose = {"labels": "union"}, "have different labels; give --labels union, or first"
    for network, fields, words in (
        *((each, {}, choose) for each in (other, turned, unnamed)),
        (unnamed, union, "LABEL_0 has no name"),
        (f"{other}/model.safetensors", {"labels": "first"}, "labels is for folders"),
        (other, union | {"average": "slerp"}, "by their mean; leave"),
        (other, union | {"distil": 5}, "by their mean; leave"),
        (
            other,
            union | {"model": f"{own}:net", "input": "2x2"},
            "Linear does not say which rows are of tokens and",
        ),
        (other, union | {"out": f"{tmp_path}/a.safetensors"}, "files that name all tokens and labels; give --out"),
        (other, union | {"data": "digits"}, "no examples in common"),
    ):
        with pytest.raises((ModelError, UsageError), match=words):
            merge(one, network, **{"match": "none", "out": str(tmp_path / "out")} | fields)
