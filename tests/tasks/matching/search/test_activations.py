"""Units at work: their moments, and matching by them."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from roundweave.storage.errors import ShapeMismatch, UsageError
from roundweave.tasks.matching.search.activations import activation_moments, moment_terms
from roundweave.tasks.matching.search.matches import By, match
from tests.tasks.matching.analysed import analysed, copies, mlp, networks, scrambled


@pytest.mark.parametrize(
    ("by", "metric"),
    [*product(["activations"], ["l2", "cosine", "correlation"]), *product(["mixed"], ["cosine", "correlation"])],
)
def test_permuted_copies_are_matched_by_their_units_at_work(by: By, metric: str) -> None:
    network, units, states = copies(2)
    moments = activation_moments(network, states, [torch.randn(400, 10)], units, [(0, 1)])
    order = match(states[0], states[1], units, by, metric=metric, moments=moments)  # type: ignore[arg-type]
    aligned = units.permute(states[1], order)
    assert all(torch.equal(aligned[name], states[0][name]) for name in aligned)


SHOWN = ["cnn", "resnet", "encoder_pre_norm", "densenet"]
NOT_SHOWN = ["lstm", "gru_both_ways"]
"""Units inside a recurrent layer, which no activation shows."""
MASKED = ["gpt_unbind", "transformers_gpt2_eager"]
"""Scores of attention that are infinite, or overflow when they are squared."""
AT_WORK = {*SHOWN, *NOT_SHOWN, *MASKED}


@pytest.mark.parametrize(
    "name", [each for each in networks("cnn", "lstm", "gpt_unbind") if {*each.values} & AT_WORK]
)
def test_units_at_work_are_found_in_other_architectures(name: str) -> None:
    units, target, source, _ = scrambled(name)
    model, inputs, _ = analysed(name)
    examples = [
        torch.cat([torch.randn(t.shape) if t.is_floating_point() else t for _ in range(30)]) for t in inputs
    ]
    moments = activation_moments(model, [target, source], examples, units, [(0, 1)])
    assert moments
    found = match(target, source, units, "mixed" if name in SHOWN else "activations", moments=moments)
    back = units.permute(source, found)
    assert all(torch.equal(back[tensor], target[tensor]) for tensor in target)


@pytest.mark.parametrize("shift", [0, 1000])
def test_correlations_are_those_of_the_activations_themselves_and_0_of_constant_ones(shift: int) -> None:
    """Also of units that are far from zero."""
    network, units, _ = copies(2)
    other = mlp(7, 10, 24, 16, 4)
    for one in (network, other):
        one[0].bias.data += shift  # type: ignore[index, operator, union-attr]
        one[0].weight.data[:3] = 0  # type: ignore[index, operator, union-attr]
    inputs = torch.randn(500, 10)
    moments = activation_moments(network, [network.state_dict(), other.state_dict()], [inputs], units, [(0, 1)])
    (term,) = (t for t in moment_terms(moments, (0, 1), "correlation") if t.labels == ("0",))
    with torch.no_grad():
        both = torch.cat([each[:2](inputs) for each in (network, other)], 1).double()  # type: ignore[index]
    varies = both.std(0) > 1e-6
    alive = varies[:24, None] & varies[None, 24:]
    assert torch.allclose(term.moments[alive].double(), torch.corrcoef(both.T)[:24, 24:][alive], atol=1e-4)
    assert alive.any() and not alive[:3].any() and not term.moments[~alive].any()


def test_too_few_examples_and_missing_moments_are_told() -> None:
    network, units, states = copies(2)
    with pytest.raises(UsageError, match="19 examples are too few"):
        activation_moments(network, states, [torch.randn(19, 10)], units, [(0, 1)])
    with pytest.raises(UsageError, match="needs the networks' activations"):
        match(states[0], states[1], units, "activations")
    with pytest.raises(ShapeMismatch, match=r"0\.weight"):
        match({**states[0], "0.weight": torch.zeros(2, 2)}, states[1], units)
