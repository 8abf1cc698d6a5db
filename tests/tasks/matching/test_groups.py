"""The laws of permuting units, bit for bit, and what is refused."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from roundweave.storage.errors import ShapeMismatch
from roundweave.tasks.matching.groups import UnitGroup, UnitGroups, rearranged
from roundweave.tasks.matching.units import find_units
from tests.storage.values.test_tensors import Versioned
from tests.tasks.matching.analysed import analysed
from tests.tasks.merging.by_hand import same_bits

NESTED = ["mlp", "cnn", "densenet", "lstm_final_state", "gpt_unbind", "transformers_llama_eager", "stack_roll_pad"]
NESTED += ["shufflenet"]
PERMUTATIONS = st.tuples(st.integers(0, 2**32), st.booleans())
"""Where to draw from, and whether only some groups are named."""


def drawn(units: UnitGroups, permutation: tuple[int, bool]) -> dict[str, torch.Tensor]:
    seed, some = permutation
    generator = torch.Generator().manual_seed(seed)
    found = units.random(generator)
    kept = torch.rand(len(found), generator=generator) > (0.5 if some else -1)
    return {name: table for (name, table), keep in zip(found.items(), kept, strict=True) if keep}


def numbered(units: UnitGroups) -> dict[str, torch.Tensor]:
    """A state whose elements all differ within a tensor."""
    return {n: torch.arange(math.prod(shape)).reshape(shape) for n, shape in units.tensors.items()}


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(NESTED), PERMUTATIONS)
def test_the_inverse_undoes(name, permutation):
    _, _, units = analysed(name)
    state, one = numbered(units), drawn(units, permutation)
    assert same_bits(units.permute(units.permute(state, one), units.invert(one)), state)
    assert same_bits(units.permute(units.permute(state, units.invert(one)), one), state)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(NESTED), PERMUTATIONS, PERMUTATIONS)
def test_composing_is_doing_one_after_the_other(name, first, then):
    _, _, units = analysed(name)
    state, one, other = numbered(units), drawn(units, first), drawn(units, then)
    twice = units.permute(units.permute(state, one), other)
    assert same_bits(units.permute(state, units.compose(one, other)), twice)


@pytest.mark.parametrize("name", NESTED)
def test_identity_changes_nothing_and_random_is_reproducible(name):
    _, _, units = analysed(name)
    state = numbered(units)
    assert same_bits(units.permute(state, units.identity()), state)
    assert same_bits(units.permute(state, {}), state)
    first, again = (units.random(torch.Generator().manual_seed(3)) for _ in range(2))
    assert same_bits(first, again) and not same_bits(first, units.random(torch.Generator().manual_seed(4)))
    moved = units.permute(state, first)
    assert all(torch.equal(moved[n].flatten().sort().values, state[n].flatten()) for n in state)


def test_the_share_of_units_that_moved_by_hand():
    """Of 16 and 12 units; in a mixture those that are mostly another unit."""
    _, _, units = analysed("mlp")
    home = units.identity()
    assert units.moved(home) == 0
    rolled = home | {"0": home["0"].roll(1)}
    assert units.moved(rolled) == 16 / 28
    assert units.moved(rolled | {"2": torch.eye(12).flip(0)}) == 1


def test_a_state_is_permuted_into_new_tensors_and_keeps_what_it_has_besides():
    _, _, units = analysed("mlp")
    state = {name: torch.randn(shape) for name, shape in units.tensors.items()} | {"more": torch.zeros(2)}
    before = {name: tensor.clone() for name, tensor in state.items()}
    moved = units.permute(state, units.random(torch.Generator().manual_seed(1)))
    assert same_bits(state, before) and moved["more"] is state["more"]
    assert not torch.equal(moved["0.weight"], state["0.weight"])


def test_a_tied_tensor_is_permuted_once_and_stays_tied():
    model, _, units = analysed("gpt")
    state = model.state_dict()
    moved = units.permute(state, units.random(torch.Generator().manual_seed(1)))
    assert units.aliases == {"head.weight": "tokens.weight"}
    assert moved["head.weight"] is moved["tokens.weight"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_any_type_and_any_memory_order(dtype):
    _, _, units = analysed("cnn")
    one = units.random(torch.Generator().manual_seed(1))
    state = {name: torch.randint(100, shape).to(dtype) for name, shape in units.tensors.items()}
    turned = {n: t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for n, t in state.items()}
    assert same_bits(units.permute(state, one), units.permute(turned, one))


@pytest.mark.parametrize(("broken", "says"), [(None, "missing"), (torch.zeros(16, 11), r"\(16, 11\)")])
def test_a_state_that_does_not_fit_is_refused(broken, says):
    model, _, units = analysed("mlp")
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "0.weight"}
    state = state if broken is None else state | {"0.weight": broken}
    with pytest.raises(ShapeMismatch, match=rf"tensor 0\.weight is {says}, .* has \(16, 10\)"):
        units.permute(state, units.identity())


def test_a_permuted_state_says_of_which_version_its_modules_are():
    model = nn.Sequential(Versioned(3, 4), Versioned(4, 2))
    units = find_units(model, (torch.randn(2, 3),))
    moved = units.permute(model.state_dict(), units.random(torch.Generator().manual_seed(1)))
    model.load_state_dict(moved)
    assert same_bits(model.state_dict(), moved)


class Mixed(nn.Module):
    """Units that are mixed in their order, between two that are not."""

    def __init__(self):
        super().__init__()
        self.embedding, self.packed, self.out = nn.Embedding(10, 8), nn.Linear(8, 6), nn.Linear(6, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        packed = self.packed(self.embedding(x))
        return self.out(packed + packed.roll(1, -1)) @ self.embedding.weight.T


def test_free_units_are_counted_beside_the_coverage():
    """Every tensor has a free axis of width 8; ten words and the six units between are pinned."""
    model = Mixed()
    units = find_units(model, (torch.randint(10, (2, 3)),))
    assert units.coverage == pytest.approx(3 / 4) and list(units.pinned) == ["packed.bias"]
    assert units.free_units == 8
    assert sorted(units.pinned_units.values()) == [6, 10]
    frozen = units.without(["embedding.weight"])
    assert frozen.free_units == 0 and frozen.pinned_units["frozen"] == 8


def test_orders_within_orders_do_not_depend_on_where_the_axes_stand() -> None:
    """A head's halves, and units within each half: in whatever place of the tensor an axis is."""
    groups = {
        "head": UnitGroup("head", 2),
        "half": UnitGroup("half", 2, ("head",)),
        "unit": UnitGroup("unit", 3, ("head", "half")),
    }
    order = {
        "head": torch.tensor([1, 0]),
        "half": torch.tensor([[1, 0], [0, 1]]),
        "unit": torch.tensor([[[1, 2, 0], [0, 2, 1]], [[2, 1, 0], [0, 1, 2]]]),
    }
    values = torch.arange(12).reshape(2, 2, 3)
    # New head 0 is old head 1 with its halves swapped; of its new half 0, which is old half 1, units 1, 2, 0; …
    expected = torch.tensor([[[10, 11, 9], [6, 8, 7]], [[2, 1, 0], [3, 4, 5]]])
    for dims in permutations(range(3)):
        names = tuple(list(groups)[dim] for dim in dims)
        assert rearranged(values.permute(dims), names, groups, order).equal(expected.permute(dims))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NESTED), st.tuples(*[PERMUTATIONS] * 3))
def test_permutations_are_a_group(name, three):
    _, _, units = analysed(name)
    one, other, third = (drawn(units, permutation) for permutation in three)
    left = units.compose(units.compose(one, other), third)
    assert same_bits(left, units.compose(one, units.compose(other, third)))
    nothing = {group: table for group, table in units.identity().items() if group in one}
    assert same_bits(units.compose(one, units.invert(one)), nothing)
    assert same_bits(units.compose(units.invert(one), one), nothing)
    assert same_bits(units.compose(one, {}), one) and same_bits(units.compose({}, one), one)
