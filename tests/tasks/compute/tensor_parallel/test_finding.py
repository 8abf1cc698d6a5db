"""Which units are shared: all that can be, and none that something between their layers mixes or counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from storage.errors import ModelError, UsageError
from tasks.compute.tensor_parallel.finding import LARGE, candidates, find_shares
from tasks.compute.tensor_parallel.shares import Shares
from tasks.maps.local_steps import LocalSteps
from tasks.networks.objective import ModelSpec, Objective
from tasks.networks.reference import MODELS
from tests.tasks.compute.tensor_parallel.networks import objective_of, off, shares_of
from tests.tasks.matching.analysed import NAMES, built
from tests.tasks.sampled import sampled

STEPS = LocalSteps(local_steps=20, batch_size=7, lr=0.05)


def cut(shares: Shares) -> float:
    """How much of a network's parameters is cut."""
    sizes = {spec.name: spec.size for spec in shares.layout.params}
    return sum(size for name, size in sizes.items() if name in shares.cuts) / sum(sizes.values())


def test_of_layers_in_a_chain_those_are_shared_that_have_most_units() -> None:
    shares = shares_of(objective_of("chain", widths=[6, 30, 20, 5]), 2)
    # Of 60, 180, 600, 100 and 25 weights: 60 + 180 and 600 + 100 are more than 180 + 600 and 100 + 25.
    assert (shares.column, shares.row, shares.sliced) == (("0", "6"), ("3", "9"), ())
    assert (shares_of(objective_of("chain", widths=[8]), 2).units) == ("0",)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_units_that_do_not_divide_are_shared_as_evenly_as_can_be(ranks: int) -> None:
    shares = shares_of(objective_of("chain", widths=[7]), ranks)
    sizes = [shares.cuts["0.weight"].size(rank) for rank in range(ranks)]
    assert sum(sizes) == 7 and max(sizes) - min(sizes) == (1 if 7 % ranks else 0)
    assert [shares.cuts["3.weight"].size(rank) for rank in range(ranks)] == sizes


def test_a_gpt_s_heads_and_wide_layers_are_shared() -> None:
    shares = shares_of(objective_of("gpt", width=16, heads=4, depth=2), 2)
    parts = ("query", "key", "value")
    assert set(shares.column) == {
        f"blocks.{n}.{name}" for n in (0, 1) for name in (*(f"attention.{p}" for p in parts), "widen")
    }
    assert {(count.attribute, count.values) for count in shares.counts} == {("heads", (2, 2))}
    assert cut(shares) > 0.9


@pytest.mark.parametrize(("way", "ranks"), sampled(5, ["split", "chunk", "view"], [2, 3]))
def test_queries_keys_and_values_of_one_layer_are_shared_by_heads(way: str, ranks: int) -> None:
    objective = objective_of("packed", way=way)
    shares = shares_of(objective, ranks)
    assert (shares.column, shares.row) == (("packed",), ("out",))
    assert [len(spans) for spans in shares.cuts["packed.weight"].spans] == [3] * ranks
    assert off(objective, STEPS, ranks) < 1e-12


def test_heads_whose_width_is_taken_from_the_input_are_left_out() -> None:
    with pytest.raises(ModelError, match="give another function"):
        shares_of(objective_of("packed", way="width of the input"), 2)


@pytest.mark.parametrize("model", ["softmax", "means", "views"])
def test_units_that_are_mixed_or_counted_between_their_layers_are_not_shared(model: str) -> None:
    with pytest.raises(ModelError, match="shares of units first give another function than all of them"):
        shares_of(objective_of(model), 2)


def test_layers_that_are_passed_by_in_evaluation_are_not_shared() -> None:
    with pytest.raises(ModelError, match="shares of units first give another function than all of them"):
        shares_of(objective_of("past"), 2)


@pytest.mark.parametrize(("model", "ranks"), [("linear", 2), ("normed", 2), ("chain", 17), ("cnn", 2)])
def test_a_network_without_units_to_share_is_refused(model: str, ranks: int) -> None:
    objective = objective_of(model)
    if model == "cnn":
        objective = replace(objective, model=replace(objective.model, inputs=(1, 8, 8)))
    with pytest.raises(
        ModelError, match=f"no linear layers whose units {ranks} ranks could share; leave ranks out"
    ):
        shares_of(objective, ranks)


def test_groups_that_cannot_be_shared_are_left_out_and_others_are_not() -> None:
    objective = objective_of("half")
    assert shares_of(objective, 2).units == ("plain.0",)
    assert off(objective, STEPS, 2) < 1e-12
    with pytest.raises(ModelError, match=r"shares of units mixed.first give another function"):
        shares_of(objective, 2, ("mixed.first",))


def test_the_units_that_are_named_are_shared_and_no_others() -> None:
    objective = objective_of("chain", widths=[16, 17, 18])
    shares = shares_of(objective, 2, ("6",))
    assert (shares.units, shares.column, shares.row, shares.sliced) == (("6",), ("6",), ("9",), ())
    assert shares_of(objective, 2, ("6", "0")).units == ("6", "0")
    assert shares_of(objective, 2, ("6", "6")).units == ("6",)
    assert off(objective, STEPS, 2, ("3",)) < 1e-12


def test_units_that_cannot_be_shared_are_named_with_those_that_can() -> None:
    objective = objective_of("chain", widths=[16, 17, 18])
    with pytest.raises(UsageError, match=r"units '9' cannot be shared by ranks; those of 0, 3, 6 can$"):
        shares_of(objective, 2, ("0", "9"))
    with pytest.raises(UsageError, match=r"units '3' and '0' meet in one layer; share one of them$"):
        shares_of(objective, 2, ("0", "3"))


# Large layers in no group.


@pytest.mark.parametrize(("dtype", "ranks"), sampled(5, ["float32", "float64"], [2, 3, 4]))
def test_a_large_layer_in_no_group_is_shared_by_its_inputs(dtype: str, ranks: int) -> None:
    objective = objective_of("chain", dtype, widths=[30, 20])
    shares = shares_of(objective, ranks)
    assert (shares.units, shares.sliced) == (("0",), ("6",))
    assert shares.cuts["6.weight"].axis == 1 and "6.bias" not in shares.cuts
    assert off(objective, STEPS, ranks) < (1e-12 if dtype == "float64" else 1e-6)


def test_a_layer_whose_inputs_need_no_gradient_is_sliced_too() -> None:
    objective = objective_of("chain", widths=[12, 30])
    assert shares_of(objective, 2).sliced == ("0",)
    assert off(objective, STEPS, 2) < 1e-12


def test_small_layers_and_those_that_are_tied_are_on_all_ranks() -> None:
    small = shares_of(objective_of("chain", widths=[30, 6]), 2)
    sizes = {spec.name: spec.size for spec in small.layout.params}
    assert small.sliced == () and sizes["6.weight"] < sum(sizes.values()) / LARGE
    tied = objective_of("tied")
    assert shares_of(tied, 2).sliced == ("head",)
    assert off(tied, STEPS, 2) < 1e-12


# All architectures that units are found in.


@pytest.mark.parametrize("name", sampled(7, [n for n in NAMES if "siamese" not in n and "bert" not in n]))
def test_any_network_is_shared_soundly_or_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (inputs,) = built(name)
    monkeypatch.setitem(MODELS, name, lambda inputs, outputs: built(name)[0])
    objective = Objective(ModelSpec(name, (1,), 1, "float64", 0), "mse")
    inputs = torch.cat([inputs, inputs]).double() if inputs.is_floating_point() else torch.cat([inputs, inputs])
    try:
        shares = find_shares(objective, inputs, 2)
    except ModelError as error:
        assert any(told in str(error) for told in ("ranks could share", "give another function", "in float64"))
    else:
        assert cut(shares) > 0.3
        assert all(
            type(objective.built.get_submodule(name)) is nn.Linear for name in (*shares.column, *shares.row)
        )


def test_a_llama_s_gates_and_heads_are_shared() -> None:
    pytest.importorskip("transformers")
    network, (inputs,) = built("transformers_llama_sdpa")
    fitting = candidates(network, inputs, 2)
    assert "model.model.layers.0.self_attn.q_proj" in fitting and "model.model.layers.0.mlp.gate_proj" in fitting
