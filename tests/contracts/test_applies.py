"""Each apply makes the next state of a state and an update, by its own memory, and changes neither."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from roundweave import Apply, State, Update
from roundweave.tasks.algorithms.applies.optimizers import Adam, Drift, KeepExtras, Sgd
from roundweave.tasks.algorithms.table import APPLIES, make_part

OTHERS = [
    Sgd(0.5, momentum=0.9),
    Sgd(0.5, momentum=0.9, nesterov=True),
    Drift(),
    KeepExtras(Sgd(0.5), ("control",), partitions=4),
    KeepExtras(Adam(), ("momentum",), of_all=False),
]
"""Those without a name of their own, and other options."""


def vectors(*dtypes: str, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {dtype: torch.randn(5, generator=generator).to(getattr(torch, dtype)) for dtype in dtypes}


def begun(apply: Apply, *dtypes: str) -> tuple[State, Update]:
    """A state with the memory of two steps, and an update."""
    params = vectors(*dtypes)
    state = State(params, {"int64": torch.tensor([1])}, vectors("float64"), apply.init(params), round=3)
    sent = [
        Update(vectors(*dtypes, seed=seed), extras=dict.fromkeys(apply.keeps, vectors(*dtypes, seed=seed + 9)))
        for seed in (1, 2, 3)
    ]
    return apply(apply(state, sent[0]), sent[1]), sent[2]


@pytest.fixture(params=[*APPLIES, *OTHERS], ids=str)
def apply(request: pytest.FixtureRequest) -> Apply:
    """One row for each apply: its name, or its value."""
    return make_part("apply", request.param, {}) if isinstance(request.param, str) else request.param


class TestApply:
    def test_it_is_a_value_that_prints_itself(self, apply: Apply) -> None:
        assert pickle.loads(pickle.dumps(apply)) == apply
        assert repr(apply).startswith(f"{type(apply).__name__}(")

    def test_it_makes_the_next_round_and_changes_neither_state_nor_update(self, apply: Apply) -> None:
        state, update = begun(apply, "float32")
        before = pickle.dumps((state, update))
        after = apply(state, update)
        assert pickle.dumps((state, update)) == before
        assert (after.round, after.frozen) == (state.round + 1, state.frozen)
        assert not torch.equal(after.params["float32"], state.params["float32"])

    def test_buffers_are_those_of_the_update_and_else_stay(self, apply: Apply) -> None:
        state, update = begun(apply, "float32")
        assert apply(state, replace(update, buffers={"int64": torch.tensor([5])})).buffers["int64"].item() == 5
        assert apply(state, update).buffers["int64"].item() == 1

    def test_its_memory_has_the_slots_and_the_types_that_it_began_with(self, apply: Apply) -> None:
        state, update = begun(apply, "float32", "bfloat16")
        fresh = apply.init(state.params)
        assert set(apply.keeps) <= fresh.keys()
        for memory in (fresh, apply(state, update).memory):
            assert memory.keys() == fresh.keys()
            for slot in memory.values():
                assert {k: (v.dtype, v.shape) for k, v in slot.items()} == {
                    k: (v.dtype, v.shape) for k, v in state.params.items()
                }

    def test_bfloat16_is_computed_in_float32_and_rounded_once(self, apply: Apply) -> None:
        def wide(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"float32": named["bfloat16"].float()}

        state, update = begun(apply, "bfloat16")
        found = apply(state, update)
        memory = {slot: wide(named) for slot, named in state.memory.items()}
        extras = {slot: wide(named) for slot, named in update.extras.items()}
        wanted = apply(
            replace(state, params=wide(state.params), memory=memory),
            replace(update, direction=wide(update.direction), extras=extras),
        )
        assert torch.equal(found.params["bfloat16"], wanted.params["float32"].bfloat16())
        for slot, named in found.memory.items():
            assert torch.equal(named["bfloat16"], wanted.memory[slot]["float32"].bfloat16())

    def test_vectors_of_two_types_are_stepped_as_each_alone(self, apply: Apply) -> None:
        state, update = begun(apply, "float32", "float64")
        both = apply(state, update)
        for dtype in ("float32", "float64"):
            only = {slot: {dtype: named[dtype]} for slot, named in state.memory.items()}
            extras = {slot: {dtype: named[dtype]} for slot, named in update.extras.items()}
            alone = apply(
                replace(state, params={dtype: state.params[dtype]}, memory=only),
                replace(update, direction={dtype: update.direction[dtype]}, extras=extras),
            )
            assert torch.equal(both.params[dtype], alone.params[dtype])

    def test_a_first_direction_is_subtracted(self, apply: Apply) -> None:
        """So each parameter moves against its number, and stays where that is 0."""
        params, direction = {"float64": torch.zeros(3).double()}, torch.tensor([2.0, -0.5, 0.0]).double()
        update = Update({"float64": direction}, extras=dict.fromkeys(apply.keeps, params))
        moved = apply(State(params, memory=apply.init(params)), update).params["float64"]
        assert moved.sign().tolist() == [-1, 1, 0]
