"""What networks give, and losses: of inputs by name, of targets by name, and losses of the networks' own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from roundweave.storage.errors import DataError, ModelError
from roundweave.tasks.networks.outputs import output_of
from roundweave.tasks.networks.scores import (
    OWN_LOSS,
)

CODE = """
import torch
from torch import nn
from types import SimpleNamespace

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)
    def forward(self, a, b=None, labels=None):
        logits = self.layer(a if b is None else a + b)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels) * 2
        return SimpleNamespace(logits=logits, loss=loss)
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)
    def forward(self, x):
        out = self.layer(x)
        return out[:, :2], out[:, 2]
def own(): return Own()
def two(): return Two()
def both(outputs, targets):
    kinds, places = outputs
    return nn.functional.cross_entropy(kinds, targets["kind"]) + (places - targets["place"]).pow(2).mean()
def right(outputs, targets): return outputs[0].argmax(1) == targets["kind"]
def spread(outputs, targets): return outputs.std()

INPUTS = torch.arange(40.0).reshape(20, 2) / 40
KINDS = torch.arange(20) % 2
def data(): return INPUTS, {"kind": KINDS, "place": KINDS / 2 + 0.25}
def scored(): return data(), data()
def dicts(): return {"a": INPUTS, "b": -INPUTS / 2, "labels": KINDS}
def ragged(examples):
    inputs = torch.stack([x for x, _ in examples])
    return inputs[:, None].expand(-1, len(examples) % 7, -1), KINDS[:1].expand(len(examples), len(examples) % 7)
def plain(): return INPUTS, KINDS
def many(): return (INPUTS, KINDS), (INPUTS.repeat(60, 1), KINDS.repeat(60))
def line(): return nn.Linear(2, 2)
def each(outputs, targets): return nn.functional.cross_entropy(outputs.mT, targets, reduction="none").mean(1)
def one(outputs, targets): return nn.functional.cross_entropy(outputs.mT, targets)
"""


@pytest.fixture
def file(own: Callable[[str], str]) -> str:
    return own(CODE)


@dataclass
class Given:
    logits: object = None
    loss: object = None


@pytest.mark.parametrize("given", [Given(torch.ones(2)), {"logits": torch.ones(2)}, torch.ones(2)])
def test_the_output_is_the_tensor_or_its_logits(given: object) -> None:
    assert output_of(given).tolist() == [1, 1]


@pytest.mark.parametrize(("given", "kind"), [(Given(), "Given"), ((torch.ones(2),), "tuple"), ({}, "dict")])
def test_anything_else_without_logits_is_refused_in_one_line(given: object, kind: str) -> None:
    with pytest.raises(
        ModelError, match=rf"^the network gives a {kind} without logits; wrap it .* what it gives$"
    ):
        output_of(given)


SMALL = {"partitions": 2, "rounds": 2, "local_steps": 3, "algorithm": "fed_avg"}


def test_a_network_that_takes_labels_is_trained_by_its_own_loss(file: str, train) -> None:
    fields = {"data": f"{file}:dicts", "model": f"{file}:own", **SMALL}
    default = train(**fields, lr=0.1).history()[1:]
    assert default["loss"].tolist() == train(**fields, lr=0.1, loss=OWN_LOSS).history()["loss"][1:].tolist()
    # Twice the loss is twice the step, and a loss twice that of the network that takes the same steps.
    other = train(**fields, lr=0.2, loss="cross_entropy").history()[1:]
    assert default["loss"].tolist() == pytest.approx([2 * loss for loss in other["loss"]], rel=1e-6)
    assert default["accuracy"].tolist() == other["accuracy"].tolist()


def test_targets_by_name_have_a_loss_and_scores_of_one_s_own(file: str, train) -> None:
    own = {"data": f"{file}:scored", "model": f"{file}:two", "loss": f"{file}:both"}
    run = train(**own, scores=(f"{file}:right",), **{**SMALL, "rounds": 12, "lr": 0.5})
    history = run.history()
    assert history["loss"].iloc[-1] < history["loss"].iloc[1]
    inputs, kinds = torch.arange(40.0).reshape(20, 2) / 40, torch.arange(20) % 2
    with torch.no_grad():
        chosen, places = run.round(12).network(trust=True).eval()(inputs)
    expected = functional.cross_entropy(chosen, kinds) + (places - kinds / 2 - 0.25).pow(2).mean()
    assert history["loss"].iloc[-1] == pytest.approx(expected.item(), rel=1e-5)
    assert history["right"].iloc[-1] == (chosen.argmax(1) == kinds).double().mean().item()


def ragged(file: str) -> dict[str, object]:
    """Outputs have one length in each batch; of 1200 held-out examples the last batch is another one."""
    return {"data": f"{file}:many", "model": f"{file}:line", "collate": f"{file}:ragged", **SMALL}


def test_a_padded_loss_that_is_one_number_is_averaged_over_labels(file: str, train) -> None:
    """Nine batches of 128 examples with two places each, and one of 48 with six; an example's places are equal."""
    runs = [train(**ragged(file), loss=f"{file}:{name}", scores=()) for name in ("one", "each")]
    for run, (early, late) in zip(runs, ((2, 6), (1, 1)), strict=True):
        network = run.round(2).network(trust=True)
        outputs = network((torch.arange(40.0).reshape(20, 2) / 40).repeat(60, 1))
        losses = functional.cross_entropy(outputs, torch.zeros(1200, dtype=torch.long), reduction="none")
        weights = torch.tensor([early] * 1152 + [late] * 48)
        expected = (losses * weights).sum() / weights.sum()
        assert run.round(2).score.loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_score_that_needs_all_outputs_refuses_those_of_other_lengths(file: str, train) -> None:
    says = r"a score is one number of all outputs, and batches have .*; give a number for each example, or pad all"
    with pytest.raises(ModelError, match=says):
        train(**ragged(file), loss=f"{file}:each", scores=(f"{file}:spread",))


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"data": "data", "model": "two"}, ModelError, "without logits; wrap it in a module"),
        ({"data": "data", "model": "two", "loss": "both", "scores": "spread"}, ModelError, "fails with Attr"),
        ({"data": "dicts", "model": "own", "stacked": 2}, DataError, "stacked needs examples of one tensor"),
        ({"data": "plain", "model": "own", "stacked": 2, "collate": "ragged"}, DataError, "leave collate out, or"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(file: str, train, fields, error, says) -> None:
    own = ("data", "model", "loss", "scores", "collate")
    given = {key: f"{file}:{value}" if key in own else value for key, value in fields.items()}
    given |= {"scores": (given["scores"],)} if "scores" in given else {}
    with pytest.raises(error, match=says):
        train(**{"partitions": 2, "rounds": 1, **given})
