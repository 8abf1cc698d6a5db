"""Losses and scores by hand, and metrics of torchmetrics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from roundweave.storage.errors import ModelError
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.networks.scores import (
    SCORES,
    class_axis,
    count_updates,
    cross_entropy,
    default_scores,
    score_items,
)
from roundweave.tasks.networks.trying.fit import Trial
from roundweave.tasks.own_code.code import Code, find_code

OWN = """
import torch
def each(outputs, targets): return (outputs[:, 0] - targets) ** 2
def right(outputs, targets): return outputs.argmax(1) == targets
def mean(outputs, targets): return (outputs[:, 0] - targets).mean()
def number(outputs, targets): return 0.25
def text(outputs, targets): return "good"
def pairs(outputs, targets): return outputs
def fails(outputs, targets): return outputs @ outputs
"""
LOGITS = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.0, 0.3, 0.2], [0.0, 0.0, 1.0]])
LABELS = torch.tensor([1, 1, 1, 2])


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "items"),
    [
        ("accuracy", LOGITS, LABELS, [True, False, True, True]),
        ("token_accuracy", LOGITS.reshape(2, 2, 3), LABELS.reshape(2, 2), [True, False, True, True]),
        ("token_accuracy", LOGITS.reshape(2, 2, 3)[:, :1].mT, LABELS.reshape(2, 2)[:, :1], [True, True]),
        ("top5", torch.arange(8.0).expand(4, 8), torch.tensor([2, 3, 7, 0]), [False, True, True, False]),
        ("mae", torch.tensor([[1.0], [3.0]]), torch.tensor([2, -1]), [1, 4]),
        ("mae", torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 3.5]]), [1, 0.5]),
    ],
)
def test_scores_of_each_example_by_hand(name: str, outputs, targets, items: list[object]) -> None:
    assert score_items(name, outputs, targets).tolist() == items


PLAIN, SEQUENCE = torch.zeros(2, 3), torch.zeros(2, 7, 3)
ONE_EACH, AT_PLACES = torch.zeros(2, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "says"),
    [
        ("accuracy", SEQUENCE, AT_PLACES, r"\(2, 7\) of int64; token_accuracy scores sequences"),
        ("accuracy", PLAIN, torch.zeros(2), r"not \(2, 3\) and \(2,\) of float32"),
        ("accuracy", torch.zeros(3, 3), ONE_EACH, r"not \(3, 3\) and \(2,\) of int64"),
        ("top5", PLAIN, ONE_EACH, "score top5 needs more than 5 outputs, and there are 3"),
        ("top5", torch.zeros(2), ONE_EACH, "score top5 needs outputs"),
        ("token_accuracy", PLAIN, ONE_EACH, "score token_accuracy needs"),
        ("token_accuracy", SEQUENCE, torch.zeros(2, 7), "score token_accuracy needs outputs"),
        ("mae", PLAIN, torch.zeros(2), "score mae needs outputs"),
    ],
)
def test_a_score_that_does_not_fit_is_one_clear_line(name, outputs, targets, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        score_items(name, outputs, targets)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("text", "must give a number for each of 4 examples or one, not str"),
        ("pairs", r"must give a number for each of 4 examples or one, not a tensor \(4, 3\) of torch.float32"),
        ("fails", "fails with RuntimeError: "),
    ],
)
def test_ones_own_score_of_another_kind_is_refused(own, name: str, says: str) -> None:
    objective = Objective(ModelSpec("mlp", (4,), 3, "float32", 0), "cross_entropy")
    trial = Trial(objective, torch.nn.Identity(), LOGITS, LABELS, lambda most: Examples(LOGITS, LABELS), 4)
    with pytest.raises(ModelError, match=says):
        trial.is_whole(name, find_code(f"{own(OWN)}:{name}"))


def described(labels: bool, targets: tuple[int, ...]) -> Description:
    return Description(10, 2, (4,), targets, labels, 3 if labels else 0, "")


@pytest.mark.parametrize(
    ("loss", "labels", "targets", "scores"),
    [
        ("cross_entropy", True, (), ("accuracy",)),
        ("cross_entropy", True, (7,), ("token_accuracy",)),
        ("cross_entropy", False, (3,), ()),
        ("mse", True, (), ("mae",)),
        ("mse", False, (), ("mae",)),
        ("mse", True, (7,), ("mae",)),
        (Code("mine.py:loss", "loss", ""), True, (), ("accuracy",)),
        (Code("mine.py:loss", "loss", ""), False, (2,), ()),
    ],
)
def test_scores_that_nobody_chose(loss, labels: bool, targets, scores) -> None:
    assert default_scores(loss, described(labels, targets)) == scores
    assert set(scores) <= set(SCORES)


@pytest.mark.thorough
def test_a_metric_is_told_how_many_batches_it_has_seen() -> None:
    from torchmetrics import MeanMetric  # takes seconds

    metric = MeanMetric()
    count_updates(metric, 2)
    assert metric.update_count == 2, "torchmetrics counts otherwise now: mend tasks/networks/scores.py"
    metric.update(torch.ones(1))
    assert metric.update_count == 3


@pytest.mark.parametrize(
    ("outputs", "targets", "axis"),
    [
        ((2, 3), (2,), -1),
        ((2, 7, 3), (2, 7), -1),
        ((2, 3, 7), (2, 7), 1),
        ((2, 3, 4, 5), (2, 4, 5), 1),
        ((2, 3), (2, 7), None),
        ((2, 7, 3), (2,), None),
        ((2,), (2,), None),
    ],
)
def test_classes_lie_last_or_as_torch_has_them(outputs, targets, axis) -> None:
    assert class_axis(torch.zeros(outputs), torch.zeros(targets)) == axis


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("each", [0.81, 0.04, 1.0, 4.0]),
        ("right", [1, 0, 1, 1]),
        ("mean", (0.9 + 0.2 + 1 + 2) / -4),
        ("number", 0.25),
    ],
)
def test_ones_own_score_counts_by_example(own, name: str, items) -> None:
    found = score_items(find_code(f"{own(OWN)}:{name}"), LOGITS, LABELS)
    assert found.tolist() == pytest.approx(items)


def test_cross_entropy_over_sequences_by_hand() -> None:
    """Logits log 1, log 3 give label 0 a quarter and label 1 three quarters."""
    logits = torch.tensor([0.0, math.log(3)]).expand(1, 3, 2)
    found = cross_entropy(logits, torch.tensor([[0, 1, 1]])).item()
    assert found == pytest.approx((math.log(4) + 2 * math.log(4 / 3)) / 3)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
@settings(max_examples=25)
def test_a_sequence_is_as_many_examples_as_it_has_places(examples: int, time: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(examples)
    logits = torch.randn(examples, time, classes, generator=generator)
    labels = torch.randint(0, classes, (examples, time), generator=generator)
    apart = torch.stack([cross_entropy(logits[:, place], labels[:, place]) for place in range(time)]).mean()
    torch.testing.assert_close(cross_entropy(logits, labels), apart)


def test_single_labels_and_probabilities_are_read_as_torch_does() -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 1, 0])
    shares = torch.full((5, 3), 1 / 3)
    assert torch.equal(cross_entropy(logits, labels), functional.cross_entropy(logits, labels))
    assert torch.equal(cross_entropy(logits, shares), functional.cross_entropy(logits, shares))
    pictures, masks = torch.randn(2, 3, 4, 5), torch.ones(2, 4, 5, dtype=torch.long)
    assert torch.equal(cross_entropy(pictures, masks), functional.cross_entropy(pictures, masks))
