"""The reduce that matches units before it combines networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from roundweave import Matched, Mean, Partitions, Split, State, Update, pack, reduce_all
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.networks.objective import ModelSpec, Objective
from tests.rows import but_first

OBJECTIVE = Objective(ModelSpec("mlp", (1, 8, 8), 10, "float32", 0, '{"hidden": 32}'), "cross_entropy")
PARTITIONS = Partitions(Digits(), Split(3, "iid", 0, None))


def bound(**options: Any) -> Matched:
    return Matched(**options).bound(OBJECTIVE, PARTITIONS)


def update(state: State, arrived: State, weight: int = 1) -> Update:
    direction = {dtype: start - arrived.params[dtype] for dtype, start in state.params.items()}
    return Update(direction, weight=weight)


def permuted(matched: Matched, state: State, seed: int) -> tuple[State, dict[str, torch.Tensor]]:
    assert matched.networks is not None
    units = matched.networks.units
    order = units.random(torch.Generator().manual_seed(seed))
    tensors = units.permute(matched.networks.tensors(state.params, state.buffers, state.frozen), order)
    return replace(state, params=pack(OBJECTIVE.layout.params, tensors)), order


def outputs(start: State, reduced: Update) -> torch.Tensor:
    """What the network after the round says of the examples whose activations are compared."""
    params = {dtype: tensor - reduced.direction[dtype] for dtype, tensor in start.params.items()}
    network = OBJECTIVE.network(replace(start, params=params)).eval()
    with torch.no_grad():
        return network(PARTITIONS.load(0, 0).inputs[:500])


def nudged(state: State, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    params = {k: v + 0.001 * torch.randn(v.shape, generator=generator) for k, v in state.params.items()}
    return replace(state, params=params)


FIRST = [("weights", "start"), ("activations", "first"), ("mixed", "many")]


@pytest.mark.parametrize(("match", "to"), but_first(FIRST, [("weights", "many"), ("mixed", "first")]))
def test_permuting_what_arrives_does_not_change_the_matched_mean(match: str, to: str) -> None:
    matched = bound(match=match, match_to=to)
    start = OBJECTIVE.initial()
    arrived = [nudged(start, seed) for seed in range(3)]
    plain = reduce_all(Mean(), start, [update(start, state, weight=i + 1) for i, state in enumerate(arrived)])
    shuffled = [arrived[0], *(permuted(matched, state, seed)[0] for seed, state in enumerate(arrived[1:]))]
    updates = [update(start, state, weight=i + 1) for i, state in enumerate(shuffled)]
    found = reduce_all(matched, start, updates)
    assert found.weight == 6
    # Units that never fire on the examples look all alike at work, and may be exchanged: outputs are compared.
    assert torch.allclose(outputs(start, found), outputs(start, plain), atol=1e-4)
    if match != "activations":
        assert torch.allclose(found.direction["float32"], plain.direction["float32"], atol=1e-6)
    unmatched = reduce_all(Mean(), start, updates)
    assert not torch.allclose(outputs(start, unmatched), outputs(start, plain), atol=1e-2)


def test_the_permutation_that_is_told_brings_the_network_back() -> None:
    """Extras, which have no order of units, stay as they were sent."""
    matched = bound()
    assert matched.networks is not None
    units = matched.networks.units
    start = OBJECTIVE.initial()
    state, order = permuted(matched, start, 5)
    sent = replace(update(start, state), extras={"control": {"float32": state.params["float32"]}})
    found = reduce_all(matched, start, [sent])
    assert torch.allclose(found.direction["float32"], torch.zeros(1), atol=1e-7)
    assert found.extras == sent.extras
    (match,) = found.matches
    assert all(torch.equal(match.permutation[name], table) for name, table in units.invert(order).items())
    assert all(torch.allclose(t, torch.ones_like(t), atol=1e-4) for t in match.similarity.values())


def test_a_soft_match_tells_mixtures() -> None:
    matched = bound(soft=3)
    start = OBJECTIVE.initial()
    (match,) = reduce_all(matched, start, [update(start, nudged(start, 1))]).matches
    table = match.permutation["fc1"]
    assert table.shape == (32, 32)
    assert torch.allclose(table.sum(1), torch.ones(32))
    assert [(s.name, s.dtype, s.shape) for s in matched.matches] == [("fc1", "float32", (32, 32))]


# In runs


def test_a_matched_run_keeps_its_permutations(train: Callable[..., Any]) -> None:
    run = train(algorithm="matched", init="per-partition", partitions=3, rounds=2, local_epochs=2)
    permutations = run.round(1).permutations["fc1"]
    assert permutations.dims == ("partition", "fc1.0")
    assert permutations[0].values.tolist() == list(range(256)), "the first network keeps its order"
    assert permutations[1].values.tolist() != list(range(256))
    assert sorted(permutations[1].values.tolist()) == list(range(256))
    similarities = run.round(1).similarities["fc1"]
    assert (similarities.values <= 1.0001).all()
    assert similarities[0].values == pytest.approx(np.ones(256), abs=1e-4)
    assert (run.round(2).permutations["fc1"].values == np.arange(256)).mean() > 0.9, "near identity once together"
