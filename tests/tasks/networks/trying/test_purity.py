"""Losses and scores of the user's are means of known examples, and follow from what they are given alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import roundweave as rw
from roundweave.storage.errors import ModelError, UsageError

CODE = """
from collections import OrderedDict
from types import SimpleNamespace
import torch
from torch import nn
from torch.nn.functional import cross_entropy

WEIGHT = torch.tensor([1.0, 2.0, 5.0, 20.0], dtype=torch.float64)
def drawn(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator).sort().values
    return torch.randn(count, 5, generator=generator, dtype=torch.float64) + labels[:, None], labels
def alone(): return drawn(60, 0)
def data(): return drawn(60, 0), drawn(1100, 1)
class Net(nn.Module):
    kind = "tensor"
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)
    def forward(self, x): return self.layer(x)
class Named(OrderedDict):
    def __getitem__(self, key): return [*self.values()][key] if isinstance(key, int) else super().__getitem__(key)
class Object(Net):
    def forward(self, x): return Named(logits=self.layer(x), cache=object())
class Counts(Net):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return SimpleNamespace(logits=self.layer(x) * self.calls)
class Pair(Net):
    def forward(self, x): return self.layer(x), 2 * self.layer(x)
class OwnLoss(Net):
    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"logits": logits, "loss": None if labels is None else cross_entropy(logits, labels, weight=WEIGHT)}
class Draws(Net):
    def forward(self, x): return self.layer(x + 0.5 * torch.randn_like(x))
def weighted(outputs, targets): return cross_entropy(outputs, targets, weight=WEIGHT)
def first(outputs, targets): return cross_entropy(outputs[0], targets, weight=WEIGHT)
def masked(outputs, targets):
    targets[targets == 1] = -100
    return cross_entropy(outputs.mul_(1), targets)
def squashed(outputs, targets): return (outputs.sigmoid_() > 0.5).any(1)
class Annealed:
    calls = 0
    def __call__(self, outputs, targets):
        self.calls += 1
        return cross_entropy(outputs, targets) * min(1.0, self.calls / 1e4)
annealed = Annealed()
CALLS = 0
def counting(outputs, targets):
    global CALLS
    CALLS += 1
    return outputs.mean(1) + (CALLS > 1000)
class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))
    def forward(self, outputs, targets): return cross_entropy(outputs * self.log.exp(), targets)
temperature = Temperature()
def jitter(x): return x + 0.5 * torch.randn(x.shape)
"""
RUN = {"rounds": 2, "partitions": 2, "local_steps": 2, "batch_size": 16, "lr": 0.1, "dtype": "float64"}
WEIGHT = torch.tensor([1.0, 2.0, 5.0, 20.0], dtype=torch.float64)


@pytest.fixture
def run(own, train):
    """Train a network of the code, with other fields of it."""
    file = own(CODE)

    def run(model: str = "Net", **fields: Any) -> rw.Run:
        own = {key: f"{file}:{fields[key]}" for key in ("data", "loss", "held_out_transform") if key in fields}
        scores = tuple(f"{file}:{score}" for score in fields.pop("scores", ()))
        return train(
            **{"data": f"{file}:data", "model": f"{file}:{model}", "scores": scores, **RUN, **fields, **own}
        )

    return run


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(4, (1100,), generator=generator).sort().values
    return torch.randn(1100, 5, generator=generator, dtype=torch.float64) + labels[:, None], labels


@pytest.mark.parametrize(("model", "loss"), [("Net", "weighted"), ("Object", "first"), ("Pair", "first")])
def test_a_loss_with_weights_of_classes_is_that_of_all_outputs_at_once(run, model: str, loss: str) -> None:
    """However the network gives them. Labels are sorted, so that batches differ."""
    made, (inputs, labels) = run(model, loss=loss), held_out()
    layer = made.round(2).network(trust=True).layer
    wanted = cross_entropy(layer(inputs), labels, weight=WEIGHT).item()
    assert made.round(2).score.loss == pytest.approx(wanted, rel=1e-9)


def test_a_network_s_own_loss_with_weights_of_classes_has_no_mean_over_batches(run) -> None:
    with pytest.raises(ModelError, match="a mean over neither examples nor labels"):
        run("OwnLoss")
    assert run("OwnLoss", data="alone", held_out=0.0, name="unscored").done == 2


@pytest.mark.parametrize("algorithm", ["q_fed_avg", "afl"])
def test_partitions_are_not_weighed_by_a_loss_that_has_no_mean(run, algorithm: str) -> None:
    with pytest.raises(UsageError, match="partitions are weighed by their loss: the loss is a mean over neither"):
        run(loss="weighted", algorithm=algorithm)


def test_what_a_loss_writes_to_is_a_copy(run) -> None:
    """It has the labels of all rounds, and a score beside it has outputs that no other has squashed."""
    made, (inputs, labels) = run(loss="masked", scores=("squashed",), batch_size=None), held_out()
    outputs = made.round(2).network(trust=True)(inputs)
    wanted = cross_entropy(outputs, labels.masked_fill(labels == 1, -100)).item()
    assert made.round(2).score.loss == pytest.approx(wanted, rel=1e-9)
    assert made.replay("all", trust=True).identical


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"loss": "annealed"}, "loss .*:annealed gives another value when it is called again"),
        ({"loss": "counting"}, "loss .*:counting gives another value when it is called again"),
        ({"model": "Counts"}, "model .*:Counts: a second forward pass on the same examples gives another"),
        ({"loss": "temperature"}, "has a parameter log, which nothing trains"),
    ],
)
def test_a_loss_that_keeps_or_learns_something_is_refused(run, fields: dict[str, str], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        run(**fields)


@pytest.mark.parametrize("fields", [{"model": "Draws"}, {"held_out_transform": "jitter"}])
def test_what_is_drawn_in_scoring_does_not_depend_on_who_scores(run, fields: dict[str, str]) -> None:
    alike = [run(**fields, partitions=n, name=f"by-{n}").round(0).score for n in (1, 2, 3)]
    assert alike[0] == alike[1] == alike[2]
