"""Networks whose blocks lie in one tensor: each block has an order of its own, which is drawn here by hand.

The permuted copy computes the same function; it is matched back exactly, and the mean of both is the network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.check import _outputs, check_function, randomise
from roundweave.tasks.matching.search.matches import match
from roundweave.tasks.matching.units import find_units
from tests.rows import but_first
from tests.tasks.matching.analysed import analysed
from tests.tasks.matching.zoo.huggingface import LAYERS, TEXT, Logits

State = dict[str, Tensor]
Permute = Callable[[State], None]
BLOCKS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...], Permute]]] = {}


class Network(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any):
        super().__init__()
        self.work = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(torch.randn(part)) if isinstance(part, tuple) else part)

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self, x)


def network(name: str, forward: Callable[[Any, Tensor], Tensor], permute: Permute, **parts: Any) -> None:
    BLOCKS[name] = lambda: (Network(forward, **parts), (torch.randn(5, 6),), permute)


def along(state: State, dim: int, order: Tensor, *names: str) -> None:
    for name in names:
        state[name] = state[name].index_select(dim, order)


def each(state: State, **dims: int) -> None:
    """Another order of units in each of the blocks, which are along the first axis; `dims` say where units are."""
    size = next(state[name].shape[dim] for name, dim in dims.items())
    count = len(state[next(iter(dims))])
    orders = [torch.randperm(size) for _ in range(count)]
    for name, dim in dims.items():
        state[name] = torch.stack(
            [part.index_select(dim - 1, order) for part, order in zip(state[name], orders, strict=True)]
        )


# Ensembles in one tensor: 3 members of 8 hidden units over 6 inputs
MEMBERS = {"w": (3, 6, 8), "b": (3, 8), "v": (3, 8, 4)}


def hidden(m: Any, x: Tensor) -> Tensor:
    return (torch.einsum("bd,edh->ebh", x, m.w) + m.b[:, None]).relu()


def outputs(m: Any, x: Tensor) -> Tensor:
    return torch.einsum("ebh,ehc->ebc", hidden(m, x), m.v)


def members(state: State) -> None:
    each(state, w=2, b=1, v=1)


def members_in_any_order(*gates: str) -> Permute:
    def permute(state: State) -> None:
        members(state)
        along(state, 0, torch.randperm(3), "w", "b", "v", *gates)

    return permute


network("ensemble_that_gives_each_output", outputs, members, **MEMBERS)
network("stacked_bmm", lambda m, x: torch.bmm(torch.baddbmm(
    m.b[:, None], x.expand(3, -1, -1), m.w).relu(), m.v), members, **MEMBERS)  # fmt: skip
network("mean_of_an_ensemble", lambda m, x: outputs(m, x).softmax(-1).mean(0), members_in_any_order(), **MEMBERS)
network("soft_experts", lambda m, x: torch.einsum("ebc,be->bc", outputs(m, x), m.gate(x).softmax(-1)),
        members_in_any_order("gate.weight", "gate.bias"), **MEMBERS, gate=nn.Linear(6, 3))  # fmt: skip
network("experts_above_a_threshold", lambda m, x: torch.einsum("ebc,be->bc", outputs(m, x), torch.where(
    m.gate(x) >= m.gate(x).topk(2).values[:, 1:], m.gate(x), 0.0)),
    members_in_any_order("gate.weight", "gate.bias"), **MEMBERS, gate=nn.Linear(6, 3))  # fmt: skip


def convolutions(state: State) -> None:
    state |= {name: tensor.unflatten(0, (3, -1)) for name, tensor in state.items()}
    each(state, **{"a.weight": 1, "a.bias": 1, "b.weight": 2})
    state |= {name: tensor.flatten(0, 1) for name, tensor in state.items()}


network("grouped_convolutions", lambda m, x: m.b(m.a(x[..., None].repeat(1, 3, 1)).relu()), convolutions,
        a=nn.Conv1d(18, 24, 1, groups=3), b=nn.Conv1d(24, 12, 1, groups=3))  # fmt: skip


# Mixtures of experts of the transformers package: 4 experts of so many hidden units
MOE = LAYERS | TEXT | {"num_key_value_heads": 2, "head_dim": 8, "use_cache": False, "tie_word_embeddings": False}
FOUR = {"num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4, "moe_intermediate_size": 20}
EXPERTS = {"Mixtral": 40, "Qwen2Moe": 20, "Qwen3Moe": 20, "Olmoe": 40, "GraniteMoe": 40, "GptOss": 40}


def language_model(name: str, **more: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**MOE | more)
    return Logits(getattr(transformers, f"{name}ForCausalLM")(config)).eval(), (torch.randint(2, 30, (3, 7)),)


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_has_an_order_of_its_own(name: str) -> None:
    torch.manual_seed(1)
    model, inputs, permute = BLOCKS[name]()
    model = model.eval()
    units = find_units(model, inputs)
    assert check_function(model, inputs, units) <= 1e-10
    exact = copy.deepcopy(model).double()
    randomise(exact, torch.Generator().manual_seed(2))
    target = {n: tensor.clone() for n, tensor in exact.state_dict().items()}
    source = dict(target)
    permute(source)
    assert sum(not torch.equal(source[n], target[n]) for n in target) >= 3
    before = _outputs(exact, inputs)
    exact.load_state_dict(source)
    torch.testing.assert_close(_outputs(exact, inputs), before, rtol=1e-10, atol=1e-10)
    back = units.permute(source, match(target, source, units))
    assert all(torch.equal(back[n], target[n]) for n in target)
    exact.load_state_dict(average([target, back], [1.0, 1.0]))
    torch.testing.assert_close(_outputs(exact, inputs), before, rtol=1e-10, atol=1e-10)


NOT_FOUND = "may be in orders that are not looked for"


def looped(m: Any, x: Tensor) -> Tensor:
    chosen = m.gate(x).softmax(-1).topk(2)
    weights = [(chosen.values * (chosen.indices == e)).sum(-1, keepdim=True) for e in range(3)]
    return sum((x @ m.w[e]).relu() @ m.v[e] * weights[e] for e in range(3))


def looked_up(m: Any, x: Tensor) -> Tensor:
    number = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return torch.einsum("bh,bhc->bc", torch.einsum("bd,bdh->bh", x, m.w[number]).relu(), m.v[number])


@pytest.mark.parametrize("forward", [looped, looked_up])
def test_orders_that_are_not_found_are_named_and_not_counted_as_covered(forward: Callable[..., Tensor]) -> None:
    """Experts whose numbers are compared keep their order; matrices that are looked up are not told apart."""
    model = Network(forward, w=(3, 6, 8), v=(3, 8, 4), gate=nn.Linear(6, 3))
    units = find_units(model, (torch.randn(5, 6),))
    assert units.coverage < 1 and any(NOT_FOUND in why for why in units.pinned.values())
    assert any(NOT_FOUND in why for why in units.pinned_units)
    assert len(units.groups) == (3 if forward is looped else 0)


@pytest.mark.parametrize(
    ("name", "more"), but_first([("Mixtral", {"experts_implementation": "batched_mm"})], [("Phimoe", {})])
)
def test_experts_that_are_not_told_apart_are_named(name: str, more: dict[str, Any]) -> None:
    model, inputs = language_model(name, **FOUR, **more)
    units = find_units(model, inputs)
    assert units.coverage < 1 and sum(NOT_FOUND in why for why in units.pinned.values()) == 4
    assert not any("experts" in name for name in units.groups)


HEADS, SHARED = [(4,), (8, 4), (8, 4)], [(2,), (2, 2), (8, 2)]
"""Queries and keys share an order and values have another; or two pairs of queries on one key, which rotate."""
LAYERED = {
    **dict.fromkeys(["gpt", "gpt_unbind", "gpt_chunk"], (24, [(4,), (6, 4), (6, 4), (48,)])),
    **dict.fromkeys(["transformers_gpt2_sdpa", "transformers_gpt2_eager"], (32, [*HEADS, (128,)])),
    **dict.fromkeys(["transformers_vit_sdpa", "transformers_vit_eager"], (32, [*HEADS, (40,)])),
    **dict.fromkeys(["transformers_llama_sdpa", "transformers_llama_eager"], (32, [*SHARED, (40,)])),
    "transformers_mixtral": (32, [*SHARED, (4,), (40, 4)]),
}


@pytest.mark.parametrize("name", but_first(["gpt", "transformers_llama_eager", "transformers_mixtral"], LAYERED))
def test_each_layer_head_and_expert_of_a_transformer_has_groups_of_its_own(name: str) -> None:
    """Groups as (size, sizes of their parents): the width, and some in each of two layers."""
    _, _, units = analysed(name)
    width, sizes = LAYERED[name]
    found = sorted((g.size, *(units.groups[parent].size for parent in g.parents)) for g in units.groups.values())
    assert found == sorted([(width,), *sizes, *sizes])


@pytest.mark.parametrize("name", but_first(["GptOss"], EXPERTS))
def test_experts_may_be_permuted_each_with_units_of_its_own(name: str) -> None:
    """Those of GptOss have two halves that are interleaved, and biases: the others do less."""
    model, inputs = language_model(name, **FOUR, shared_expert_intermediate_size=24)
    units = find_units(model, inputs)
    assert check_function(model, inputs, units) <= 1e-10
    found = [(g.size, *(units.groups[parent].size for parent in g.parents)) for g in units.groups.values()]
    assert (found.count((4,)), found.count((EXPERTS[name], 4))) == (2, 2)
    assert not any(NOT_FOUND in why for why in units.pinned.values())
