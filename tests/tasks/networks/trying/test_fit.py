"""How outputs are read for labels, by networks and losses of which that is known, and their scores by hand."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional

from roundweave.storage.errors import ModelError

CODE = """
import torch
from types import SimpleNamespace
from torch import nn
from torch.nn import functional

TOKENS = torch.randint(7, (260, 7), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.randint(2, 8, (260,), generator=torch.Generator().manual_seed(1)).sort().values
LABELS = TOKENS.masked_fill(torch.arange(7) >= LENGTHS[:, None], -100)
def places(): return (TOKENS[::10], LABELS[::10]), (TOKENS, LABELS)
class Rows(torch.utils.data.Dataset):
    def __init__(self, step): self.step = step
    def __len__(self): return 260 // self.step
    def __getitem__(self, number):
        row = self.step * number
        return TOKENS[row, : LENGTHS[row]], LABELS[row, : LENGTHS[row]]
def ragged(): return Rows(10), Rows(1)
def padded(rows):
    inputs, labels = zip(*rows)
    pad = nn.utils.rnn.pad_sequence
    return pad(inputs, True), pad(labels, True, -100)
WEIGHT = torch.arange(1.0, 8.0, dtype=torch.float64)
def weighted_places(outputs, targets): return functional.cross_entropy(outputs.mT, targets, weight=WEIGHT)

FEATURES = torch.randn(260, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
def sides(): return (FEATURES[:30], (FEATURES[:30, 0] > 0).long()), (FEATURES, (FEATURES[:, 0] > 0).long())

class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.out = nn.Embedding(7, 5), nn.Linear(5, 7)
    def forward(self, tokens): return self.out(self.tokens(tokens))
class First(Last):
    def forward(self, tokens): return super().forward(tokens).mT
class Shifts(Last):
    def forward(self, tokens, labels=None):
        logits = super().forward(tokens)
        read = None if labels is None else functional.cross_entropy(logits[:, :-1].mT, labels[:, 1:])
        return SimpleNamespace(logits=logits, loss=read)
class FixedLength(First):
    def forward(self, tokens):
        assert tokens.shape[1] == 7
        return super().forward(tokens)

def one(): return nn.Linear(4, 1)
def likely(): return nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
entropy, entropy_of_logits = functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits
def logistic(outputs, targets): return entropy_of_logits(outputs[:, 0], targets.to(outputs))
def bernoulli(outputs, targets): return entropy(outputs[:, 0], targets.to(outputs))
def weighted(outputs, targets):
    return entropy_of_logits(outputs[:, 0], targets.to(outputs), pos_weight=torch.tensor(3.0))
"""
RUN = {"rounds": 1, "partitions": 2, "local_steps": 2, "lr": 0.5, "dtype": "float64"}
TOKENS = torch.randint(7, (260, 7), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.randint(2, 8, (260,), generator=torch.Generator().manual_seed(1)).sort().values
LABELS = TOKENS.masked_fill(torch.arange(7) >= LENGTHS[:, None], -100)


def by_hand(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Of logits (example, place, class): loss and accuracy of all labels."""
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    return loss, (logits.argmax(-1) == labels)[labels != -100].double().mean().item()


def fields(file: str, data: str, model: str) -> dict[str, object]:
    collate = {"collate": f"{file}:padded"} if data == "ragged" else {}
    return {"data": f"{file}:{data}", "model": f"{file}:{model}", **collate}


def test_a_network_that_shifts_labels_is_scored_by_the_next_ones(own, train) -> None:
    """And its scores are chosen so where nobody chose any. Examples come by length, so that batches differ."""
    file = own(CODE)
    run = train(data=f"{file}:places", model=f"{file}:Shifts", **RUN)
    loss, accuracy = by_hand(run.round(1).network(trust=True)(TOKENS).logits[:, :-1], LABELS[:, 1:])
    assert run.round(1).score.loss == pytest.approx(loss, rel=1e-9)
    assert run.round(1).score.values == {"token_accuracy": pytest.approx(accuracy, rel=1e-9)}


def test_a_loss_that_is_a_mean_over_neither_labels_nor_examples_needs_examples_of_one_length(own, train) -> None:
    file = own(CODE)
    run = train(**fields(file, "places", "Last"), loss=f"{file}:weighted_places", scores=(), **RUN)
    logits, weight = run.round(1).network(trust=True)(TOKENS), torch.arange(1.0, 8.0, dtype=torch.float64)
    wanted = functional.cross_entropy(logits.flatten(0, 1), LABELS.flatten(), weight=weight).item()
    assert run.round(1).score.loss == pytest.approx(wanted, rel=1e-9)
    with pytest.raises(ModelError, match="and its batches have no mean; give a number for each"):
        train(**fields(file, "ragged", "Last"), loss=f"{file}:weighted_places", name="ragged", **RUN)


def test_classes_that_may_lie_on_either_axis_are_refused(own, train) -> None:
    file = own(CODE)
    with pytest.raises(ModelError, match="have as many classes as places, and either axis may be that of classes"):
        train(data=f"{file}:places", model=f"{file}:FixedLength", **RUN)


@pytest.mark.parametrize(("model", "loss"), [("one", "logistic"), ("likely", "bernoulli"), ("one", "mse")])
def test_one_output_is_label_1_from_where_both_labels_have_the_same_loss(
    own, train, model: str, loss: str
) -> None:
    file = own(CODE)
    given = loss if loss == "mse" else f"{file}:{loss}"
    scores = ("accuracy",) if loss == "mse" else None
    run = train(data=f"{file}:sides", model=f"{file}:{model}", loss=given, scores=scores, **RUN | {"lr": 0.05})
    features = torch.randn(260, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    outputs = run.round(1).network(trust=True)(features)[:, 0]
    right = (outputs > (0 if loss == "logistic" else 0.5)) == (features[:, 0] > 0)
    assert run.round(1).score.values["accuracy"] == right.double().mean().item()


def test_a_loss_that_does_not_tell_where_label_1_begins_has_no_accuracy(own, train) -> None:
    file = own(CODE)
    fields = {"data": f"{file}:sides", "model": f"{file}:one", "loss": f"{file}:weighted", **RUN}
    assert train(**fields).round(1).score.values == {}
    with pytest.raises(ModelError, match="of one output for a label the loss does not tell where label 1 begins"):
        train(**fields, scores=("accuracy",), name="asked")


SCORE = "def worst_loss(outputs, targets): return outputs[:, 0]"


def test_the_best_round_is_one_that_leaves_no_example_out(own, train) -> None:
    """A loss of one example that is infinite in the first round alone; the others are lower there."""
    source = """
import torch
def data():
    inputs = torch.tensor([[1.0], [2.0]] * 10)
    return (inputs, inputs[:, 0]), (inputs, inputs[:, 0])
def model(): return torch.nn.Linear(1, 1)
def loss(outputs, targets):
    far = (outputs[:, 0] - targets).abs()
    return torch.where(far > 0.5, torch.inf, 2 - far) if not outputs.requires_grad else far
"""
    file = own(source)
    fields = {"data": f"{file}:data", "model": f"{file}:model", "loss": f"{file}:loss"}
    run = train(**fields, rounds=6, partitions=1, local_steps=10, lr=0.05)
    history = run.history().loc[1:]
    assert history["left_out"].max() > 0
    assert history["left_out"].loc[run.best().number] == history["left_out"].min()
    assert run.round(6).commit.best_left_out == history["left_out"].min()
    by_score = train(**fields, rounds=6, partitions=1, local_steps=10, lr=0.05, best="max:loss", name="by-score")
    assert by_score.history()["left_out"].loc[by_score.best().number] == history["left_out"].min()
    with pytest.raises(ModelError, match="the name 'worst_loss' of a score is taken by another number"):
        train(**fields, scores=(f"{own(source + SCORE)}:worst_loss",), score_partitions=0.2, name="named")


PAIRED = """
import torch
def data():
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, 1] * 3
def model(): return torch.nn.Linear(3, 1)
def each(outputs, targets): return ((outputs - targets) ** 2).mean()
def own(outputs, targets): return ((outputs.squeeze(-1) - targets) ** 2).mean()
def off(outputs, targets): return (outputs - targets).abs().mean()
"""


def test_a_loss_or_a_score_that_compares_each_output_with_each_target_is_refused(own, train) -> None:
    """As tensors of shapes (example, 1) and (example,) are subtracted."""
    file = own(PAIRED)
    fields = {"data": f"{file}:data", "model": f"{file}:model", "rounds": 1, "partitions": 1, "lr": 0.01}
    for wrong in ({"loss": f"{file}:each"}, {"loss": torch.nn.L1Loss()}, {"scores": (f"{file}:off",)}):
        with (
            warnings.catch_warnings(action="ignore"),  # torch's, of the same
            pytest.raises(ModelError, match=r"compares each of outputs of shape \(2, 1\) and targets of \(2,\)"),
        ):
            train(**fields, **wrong)
    assert train(**fields, name="own", loss=f"{file}:own").digest == train(**fields, name="mse", loss="mse").digest
