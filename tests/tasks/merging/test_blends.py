"""Blends and ensembles: each score against a plain evaluation by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tasks.merging.gallery import Blend, Ensemble, blended, score_blend
from tests.tasks.merging.by_hand import by_hand, held_out, mlp_outputs, same_bits


class Constant(nn.Module):
    """Gives the same outputs for every example."""

    def __init__(self, *outputs: float) -> None:
        super().__init__()
        self.outputs = torch.tensor(outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.outputs.expand(len(inputs), -1)


def test_an_ensemble_gives_the_logarithm_of_the_mean_probabilities() -> None:
    # Probabilities 0.8, 0.2 and 0.4, 0.6; one of them as logits with a constant added.
    one = Constant(math.log(8.0), math.log(2.0))
    other = Constant(math.log(0.4), math.log(0.6))
    found = Ensemble([one, other], logits=True)(torch.zeros(3, 1))
    assert found.shape == (3, 2)
    torch.testing.assert_close(found[0], torch.tensor([math.log(0.6), math.log(0.4)]))


def test_an_ensemble_that_is_not_of_logits_gives_the_mean() -> None:
    found = Ensemble([Constant(1.0, -2.0), Constant(4.0, 2.0)], logits=False)(torch.zeros(2, 1))
    assert found.tolist() == [[2.5, 0.0]] * 2


def test_an_ensemble_survives_logits_that_overflow_an_exponential() -> None:
    found = Ensemble([Constant(1000.0, 0.0), Constant(1000.0, 0.0)], logits=True)(torch.zeros(1, 1))
    assert found.tolist() == [[0.0, -1000.0]]


def test_the_score_of_a_weighted_mean_is_that_of_a_hand_evaluation(gallery, written) -> None:
    gallery = gallery()
    states, places = written(gallery)
    mean = {name: 0.25 * states[0][name] + 0.75 * states[1][name] for name in states[0]}
    inputs, _ = held_out(gallery)
    found = score_blend(gallery, [Blend(places, (1, 3))], 0)
    want = by_hand(gallery, mlp_outputs(mean, inputs))
    assert (found.accuracy, found.examples) == (pytest.approx(want.accuracy), want.examples)
    assert found.loss == pytest.approx(want.loss, rel=1e-5)


def test_layers_are_weighted_on_their_own(gallery, written) -> None:
    gallery = gallery()
    states, places = written(gallery)
    mixed = {name: states[name.startswith("fc2")][name] for name in states[0]}
    found = blended(gallery, Blend(places, (1, 0), layers=(("fc2", (0, 1)),))).state_dict()
    assert same_bits(dict(found), mixed)


def test_a_parent_scores_as_it_is_and_an_ensemble_by_mean_probabilities(gallery, written) -> None:
    gallery = gallery()
    states, places = written(gallery, 3)
    inputs, _ = held_out(gallery)
    logits = [mlp_outputs(state, inputs) for state in states]
    blends = [Blend(places, (0, 1, 0)), Blend(places, (1, 1, 1), "ensemble")]
    parent, ensemble = (score_blend(gallery, blends, number) for number in range(2))
    assert parent.loss == pytest.approx(by_hand(gallery, logits[1]).loss, rel=1e-5)
    mean = torch.stack([one.softmax(1) for one in logits]).mean(0).log()
    assert ensemble.loss == pytest.approx(by_hand(gallery, mean).loss, rel=1e-5)
    assert ensemble.accuracy == pytest.approx(by_hand(gallery, mean).accuracy)


def test_a_blend_is_mixed_if_more_than_one_network_is_in_it() -> None:
    assert Blend(("a", "b"), (1, 1)).mixed
    assert not Blend(("a", "b"), (0, 2)).mixed
    assert Blend(("a", "b"), (1, 0), layers=(("fc1", (0, 1)),)).mixed
    assert not Blend(("a", "b"), (1, 0), layers=(("fc1", (3, 0)),)).mixed
