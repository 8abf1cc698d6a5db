"""Losses by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tasks.networks.scores import class_axis, cross_entropy


def test_cross_entropy_over_sequences_by_hand() -> None:
    """Logits log 1, log 3 give label 0 a quarter and label 1 three quarters."""
    logits = torch.tensor([0.0, math.log(3)]).expand(1, 3, 2)
    found = cross_entropy(logits, torch.tensor([[0, 1, 1]])).item()
    assert found == pytest.approx((math.log(4) + 2 * math.log(4 / 3)) / 3)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
@settings(deadline=None, max_examples=25)
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
