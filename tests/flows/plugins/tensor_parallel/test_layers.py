"""What ranks draw at random, and that what all of them have stays the same on all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import roundweave as rw
from roundweave.flows.plugins.tensor_parallel.layers import ShareObjective
from roundweave.flows.plugins.tensor_parallel.one_process import as_ranks
from roundweave.storage.errors import ModelError
from roundweave.tasks.compute.communicator import Communicator
from tests.flows.plugins.tensor_parallel.networks import (
    each_of,
    examples_of,
    mapped,
    objective_of,
    off,
    shares_of,
    tensor_parallel_of,
)
from tests.rows import but_first

STEPS = rw.LocalSteps(local_steps=6, batch_size=7, lr=0.1)
Drawn = dict[str, list[torch.Tensor]]


def seen(model: str, ranks: int, places: dict[str, str], hybrid: bool = False, **options: object) -> Drawn:
    """What is left of ones (examples, units) after dropout at places, by rank; a place is a module's name."""
    objective = objective_of(model, **options)
    shares = shares_of(objective, ranks, hybrid=hybrid)
    kept: Drawn = {name: [] for name in places}

    def forward(group: Communicator) -> None:
        state = shares.state(objective.initial(), group.rank)
        network = ShareObjective.of(objective, shares, group).network(state)
        for name, module in places.items():
            dropped = network.get_submodule(module)
            dropped.register_forward_pre_hook(lambda _, given: (torch.ones_like(given[0]),))
            dropped.register_forward_hook(lambda _, given, out, name=name: kept[name].append(out.detach()))
        network(examples_of(objective, 60).inputs)

    torch.manual_seed(2)
    as_ranks(ranks, forward)
    return kept


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_draw_the_same_for_what_all_have_and_not_for_their_own_units(ranks: int) -> None:
    # Units 0 and 6 are shared; 5 units after 3 are what all ranks have.
    places = {"own": "2", "all": "5"}
    kept, again = (seen("chain", ranks, places, widths=[12, 12, 12], dropout=0.5) for _ in range(2))
    assert all(torch.equal(a, b) for name in kept for a, b in zip(kept[name], again[name], strict=True))
    assert all(torch.equal(kept["all"][0], other) for other in kept["all"])
    assert all(not torch.equal(kept["own"][0], other) for other in kept["own"][1:])
    assert all(0.3 < (drawn > 0).double().mean() < 0.7 for drawn in kept["own"])


CASES = {
    "chain": ({"widths": [13, 7, 9], "dropout": 0.4}, False),
    "alexnet": ({"dropout": 0.4, "early": 0.4}, False),
    "hybrid": ({"dropout": 0.4, "early": 0.4}, True),
    "encoder": ({"dropout": 0.4}, False),
    "again": ({}, False),
    "python": ({}, False),
}


@pytest.mark.parametrize(("case", "ranks"), but_first([("chain", 3), ("hybrid", 2), ("python", 2)], CASES, [2, 3]))
def test_what_all_have_has_the_same_bits_on_all(case: str, ranks: int) -> None:
    options, hybrid = CASES[case]
    objective = objective_of("alexnet" if case == "hybrid" else case, "float32", **options)
    group = tensor_parallel_of(objective, ranks, hybrid=hybrid)
    updates = each_of(group, STEPS, objective)
    shares = group.known_shares
    named = [rw.views(shares.layout_of(rank).params, update.direction) for rank, update in enumerate(updates)]
    for spec in shares.layout.params:
        if spec.name not in shares.cuts:
            assert all(torch.equal(named[0][spec.name], other[spec.name]) for other in named), spec.name
    assert len({update.metrics["train_loss"] for update in updates}) == 1


def test_ranks_draw_for_the_examples_of_a_hybrid_apart() -> None:
    one, other = seen("alexnet", 2, {"early": "1"}, hybrid=True, early=0.5)["early"]
    assert one.shape == other.shape and not torch.equal(one, other)


def test_layers_that_draw_beside_others_are_not_shared_where_ranks_would_draw_different_numbers() -> None:
    """One pair of layers has ended when the other draws: for 4 units on one rank, for 3 on the other."""
    assert shares_of(objective_of("beside", dropout=0.0), 2).units == ("one", "other")
    assert shares_of(objective_of("beside", width=8), 2).units == ("one", "other")
    assert shares_of(objective_of("beside"), 2).units == ("one",)
    with pytest.raises(ModelError, match="give another function"):
        shares_of(objective_of("beside"), 2, ("one", "other"))


def test_what_is_tried_leaves_the_generator_as_it_was() -> None:
    objective = objective_of("chain", dropout=0.5)
    before = torch.get_rng_state()
    shares_of.__wrapped__(objective, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(objective.built, nn.Sequential) and objective.built.training


@pytest.mark.parametrize("parts", but_first([True], [False, True]))
def test_activations_that_are_computed_again_are_those_that_were(parts: bool) -> None:
    kept, again = (objective_of("again", again=again, parts=parts) for again in (False, True))
    one, other = (mapped(STEPS, each, by=tensor_parallel_of(each, 3)) for each in (kept, again))
    assert shares_of(again, 3).units == ("first.0", "second.0")
    assert torch.equal(one.direction["float64"], other.direction["float64"])


def test_what_is_drawn_from_python_and_numpy_is_the_same_on_all_and_as_on_one_machine() -> None:
    assert off(objective_of("python"), STEPS, 3) < 1e-12
