"""What ranks share: all that they can, and nothing that is then another function; trials and hybrids."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import roundweave as rw
from roundweave.flows.plugins.tensor_parallel.finding import LARGE, candidates, find_shares, is_sound
from roundweave.flows.plugins.tensor_parallel.mapper import TensorParallel
from roundweave.flows.plugins.tensor_parallel.shares import Shares
from roundweave.storage.errors import ModelError, RoundFailed, UsageError
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.networks.reference import MODELS
from tests.flows.plugins.tensor_parallel.networks import BEFORE, BETWEEN, examples_of, objective_of, off, shares_of
from tests.rows import but_first
from tests.tasks.matching.analysed import NAMES, built

STEPS = rw.LocalSteps(local_steps=10, batch_size=7, lr=0.05)


def cut(shares: Shares) -> float:
    """How much of a network's parameters is cut."""
    sizes = {spec.name: spec.size for spec in shares.layout.params}
    return sum(size for name, size in sizes.items() if name in shares.cuts) / sum(sizes.values())


def test_of_layers_in_a_chain_those_are_shared_that_have_most_units() -> None:
    shares = shares_of(objective_of("chain", widths=[6, 30, 20, 5]), 2)
    # Of 60, 180, 600, 100 and 25 weights: 60 + 180 and 600 + 100 are more than 180 + 600 and 100 + 25.
    assert (shares.column, shares.row, shares.sliced) == (("0", "6"), ("3", "9"), ())
    assert (shares_of(objective_of("chain", widths=[8]), 2).units) == ("0",)


def test_a_gpt_s_heads_and_wide_layers_are_shared() -> None:
    shares = shares_of(objective_of("gpt", width=16, heads=4, depth=2), 2)
    names = ("attention.query", "attention.key", "attention.value", "widen")
    assert set(shares.column) == {f"blocks.{n}.{name}" for n in (0, 1) for name in names}
    assert {(count.attribute, count.values) for count in shares.counts} == {("heads", (2, 2))}
    assert cut(shares) > 0.9


WAYS = but_first([("split", 2), ("view", 3)], ["split", "chunk", "view"], [2, 3])


@pytest.mark.parametrize(("way", "ranks"), WAYS)
def test_queries_keys_and_values_of_one_layer_are_shared_by_heads(way: str, ranks: int) -> None:
    objective = objective_of("packed", way=way)
    shares = shares_of(objective, ranks)
    assert (shares.column, shares.row) == (("packed",), ("out",))
    assert [len(spans) for spans in shares.cuts["packed.weight"].spans] == [3] * ranks
    assert off(objective, STEPS, ranks) < 1e-12


# Units are counted between their layers, or passed by in scoring.
@pytest.mark.parametrize(
    "options", [{"way": "width of the input"}, {"kind": "width of the whole"}, {"kind": "past without gradients"}]
)
def test_units_whose_shares_give_another_function_are_not_shared(options: dict[str, str]) -> None:
    model = "packed" if "way" in options else "fooling"
    with pytest.raises(ModelError, match=r"shares of units (packed|first) give another function than all"):
        shares_of(objective_of(model, **options), 2)


@pytest.mark.parametrize(("model", "ranks"), [("linear", 2), ("chain", 17)])
def test_a_network_without_units_to_share_is_refused(model: str, ranks: int) -> None:
    with pytest.raises(
        ModelError, match=f"no linear layers whose units {ranks} ranks could share; leave ranks out"
    ):
        shares_of(objective_of(model), ranks)


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


@pytest.mark.parametrize(("dtype", "ranks"), but_first([("float32", 3)], ["float32", "float64"], [2, 3, 4]))
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


FIRST = ("gpt_chunk", "resnet", "tied_autoencoder")  # convolutions, heads, and weights in two places


@pytest.mark.parametrize("name", but_first(FIRST, [n for n in NAMES if "siamese" not in n and "bert" not in n]))
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
        assert {type(objective.built.get_submodule(n)) for n in (*shares.column, *shares.row)} <= {nn.Linear}


@pytest.mark.thorough
def test_a_llama_s_gates_and_heads_are_shared() -> None:
    pytest.importorskip("transformers")
    network, (inputs,) = built("transformers_llama_sdpa")
    fitting = candidates(network, inputs, 2)
    assert "model.model.layers.0.self_attn.q_proj" in fitting and "model.model.layers.0.mlp.gate_proj" in fitting


def test_what_is_before_the_first_shared_layer_is_trained_on_shares_of_the_batch() -> None:
    shares = shares_of(objective_of("alexnet"), 2, hybrid=True)
    assert shares.joins == "8"
    assert shares.before == {"0.weight", "0.bias", "4.weight", "4.bias"}


def test_layers_before_that_are_not_sliced() -> None:
    """The first layer would be, did all ranks have its examples."""
    deep = objective_of("deep", batch_norm=False, widths=[20, 20])
    assert shares_of(deep, 2).sliced == ("lead", "rest.6")
    shares = shares_of(deep, 2, hybrid=True)
    assert (shares.joins, shares.sliced) == ("rest.0", ("rest.6",))


@pytest.mark.parametrize(
    ("model", "options", "units", "says"),
    [
        ("chain", {}, (), r"nothing is trained before 0, the first of the shared layers; leave hybrid out$"),
        ("deep", {}, ("rest.0",), r"norm normalises over the batch, of which ranks have shares; leave hybrid"),
        ("alexnet", {"norm": True}, (), r"1 normalises over the batch, of which ranks have shares; leave"),
        ("gpt", {"width": 16}, (), r"shares of the batch before .* give another function; leave hybrid out$"),
        ("encoder", {}, (), r"layer.self_attn cannot join shares of a batch, as linear layers do; leave hybrid"),
    ],
)
def test_what_cannot_be_a_hybrid_is_refused(model, options, units: tuple[str, ...], says) -> None:
    with pytest.raises(ModelError, match=says):
        shares_of(objective_of(model, **options), 2, units, hybrid=True)


def tried(change: dict[str, object], model: str = "chain") -> bool:
    objective = objective_of(model)
    shares: Shares = shares_of(objective, 2, ("3",) if model == "chain" else (), model == "alexnet")
    return is_sound(objective, examples_of(objective, 4).inputs, replace(shares, **change))


def test_what_is_found_is_sound() -> None:
    assert tried({}) and tried({}, "encoder") and tried({}, "alexnet")


@pytest.mark.parametrize(
    ("change", "model"),
    [
        *(({"column": ()}, "chain"), ({"row": ()}, "chain")),  # gradients of inputs, outputs: of the rank's units
        *(({"heads": ()}, "encoder"), ({"before": frozenset()}, "alexnet")),  # gradients: of the rank's examples
    ],
)
def test_shares_with_a_fault_are_not(change: dict[str, object], model: str) -> None:
    assert not tried(change, model)


class Single(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert inputs.dtype == torch.float32, "of float32 only"
        return super().forward(inputs)


def test_a_network_that_has_no_float64_cannot_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "single", lambda inputs, outputs: Single(inputs[0], outputs))
    objective, shares = objective_of("single", "float32"), shares_of(objective_of("chain"), 2)
    with pytest.raises(ModelError, match="Single cannot be tried in float64: AssertionError: of float32 only"):
        is_sound(objective, examples_of(objective).inputs, shares)


def assert_alike_or_refused(says: str, *given: object, **more: object) -> None:
    """A group takes the steps of the whole network, or is refused."""
    try:
        assert off(*given, **more) < 1e-12
    except ModelError as error:
        assert re.search(says, str(error))


ALIKE = ("turned", "added up", "largest", "quantile", "winners in training", "width in scoring")
"""They show in a way of another kind that units cannot be shared."""
OFTEN = [(kind, 2) for kind in BETWEEN if kind not in ALIKE]


@pytest.mark.parametrize(("kind", "ranks"), but_first(OFTEN, BETWEEN, [2, 3]))
def test_ranks_take_the_steps_of_the_whole_network_or_none(kind: str, ranks: int) -> None:
    says = "give another function|no linear layers whose units|torch.export cannot trace"
    assert_alike_or_refused(says, objective_of("fooling", kind=kind), STEPS, ranks)


@pytest.mark.parametrize(("kind", "ranks"), but_first([(kind, 2) for kind in BEFORE], BEFORE, [2, 3]))
def test_a_hybrid_takes_the_steps_of_the_whole_network_or_none(kind: str, ranks: int) -> None:
    objective = objective_of("joining", kind=kind)
    assert_alike_or_refused("give another function", objective, STEPS, ranks, ("first",), hybrid=True)


def test_what_only_larger_weights_reach_is_found_when_a_step_is_compared() -> None:
    """Activations above 30 are added up over units, of which a rank has some; at first none is as large."""
    objective = objective_of("fooling", kind="saturating")
    group, state = TensorParallel(ranks=2, shares=shares_of(objective, 2)), objective.initial()
    inputs = examples_of(objective, 8).inputs
    group.compare(objective, inputs, state)
    far = rw.State({name: 50 * vector for name, vector in state.params.items()}, state.buffers, round=100)
    with pytest.raises(RoundFailed, match=r"^round 100: ranks that share units first train another network"):
        group.compare(objective, inputs, far)
