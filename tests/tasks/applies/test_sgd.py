"""The outer optimizer against torch's, and extras that are kept in its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.values.state import State, Update
from tasks.applies.memory import KeepExtras
from tasks.applies.optimizers import Sgd


def directions(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(steps)]


@given(lr=st.floats(1e-3, 2.0), momentum=st.floats(0.0, 0.99), nesterov=st.booleans())
@settings(deadline=None, max_examples=25)
def test_steps_are_those_of_torch_step_by_step(lr: float, momentum: float, nesterov: bool) -> None:
    nesterov = nesterov and momentum > 0
    parameter = torch.nn.Parameter(torch.ones(6, dtype=torch.float64))
    theirs = torch.optim.SGD([parameter], lr=lr, momentum=momentum, nesterov=nesterov)
    ours = Sgd(lr, momentum, nesterov)
    start = {"float64": torch.ones(6, dtype=torch.float64)}
    state = State(start, memory=ours.init(start))
    for number, direction in enumerate(directions(8), start=1):
        parameter.grad = direction.clone()
        theirs.step()
        state = ours(state, Update({"float64": direction}))
        assert state.round == number
        torch.testing.assert_close(state.params["float64"], parameter.detach(), rtol=1e-12, atol=1e-12)
        if momentum:
            velocity = theirs.state[parameter]["momentum_buffer"]
            torch.testing.assert_close(state.memory["velocity"]["float64"], velocity, rtol=1e-12, atol=1e-12)


def test_momentum_by_hand() -> None:
    """From 1, along 1 and 2 with lr 0.5 and momentum 0.5: velocities 1 and 2.5; Nesterov's steps 1.5 and 3.25."""
    for nesterov, wanted in ((False, [0.5, -0.75]), (True, [0.25, -1.375])):
        apply = Sgd(0.5, 0.5, nesterov)
        params = {"float32": torch.ones(1)}
        state = State(params, memory=apply.init(params))
        for direction, there in zip((1.0, 2.0), wanted, strict=True):
            state = apply(state, Update({"float32": torch.tensor([direction])}))
            assert state.params["float32"].item() == there
        assert state.memory["velocity"]["float32"].item() == 2.5


def test_without_momentum_there_is_no_memory() -> None:
    assert Sgd(0.1).init({"float32": torch.ones(1)}) == {}
    assert list(Sgd(0.1, 0.9).init({"float32": torch.ones(3)})["velocity"]["float32"]) == [0, 0, 0]


def test_neither_the_state_nor_the_update_is_changed() -> None:
    apply = Sgd(1.0, 0.9, True)
    params = {"float32": torch.ones(2)}
    state, update = State(params, memory=apply.init(params)), Update({"float32": torch.ones(2)})
    apply(state, update)
    assert state.round == 0
    assert state.params["float32"].tolist() == update.direction["float32"].tolist() == [1, 1]
    assert state.memory["velocity"]["float32"].tolist() == [0, 0]


def test_buffers_arrive_untouched_by_rate_and_momentum_and_frozen_ones_stay() -> None:
    state = State({}, {"int64": torch.tensor([1])}, {"float32": torch.tensor([9.0])})
    found = Sgd(0.1)(state, Update({}, {"int64": torch.tensor([5])}))
    assert found.buffers["int64"].item() == 5
    assert found.frozen["float32"].item() == 9.0
    assert Sgd(0.1)(state, Update({})).buffers["int64"].item() == 1


def test_bfloat16_parameters_are_stepped_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    start, direction = (torch.randn(200, generator=generator).to(torch.bfloat16) for _ in range(2))
    found = Sgd(0.1)(State({"bfloat16": start}), Update({"bfloat16": direction})).params["bfloat16"]
    assert torch.equal(found, (start.float() - 0.1 * direction.float()).to(torch.bfloat16))
    assert not torch.equal(found, start - 0.1 * direction)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_has_the_type_of_the_parameters(dtype) -> None:
    apply = Sgd(0.1, 0.9)
    params = {dtype: torch.ones(2, dtype=getattr(torch, dtype))}
    state = apply(State(params, memory=apply.init(params)), Update(params))
    assert state.memory["velocity"][dtype].dtype == params[dtype].dtype


PARAMS = {"float32": torch.ones(2)}


def test_the_extras_are_kept_beside_the_memory_of_the_apply() -> None:
    plain, keeping = Sgd(0.5, 0.9), KeepExtras(Sgd(0.5, 0.9), ("control",))
    one, two = State(PARAMS, memory=plain.init(PARAMS)), State(PARAMS, memory=keeping.init(PARAMS))
    assert two.memory["control"]["float32"].tolist() == [0, 0]
    for number in (3.0, 4.0):
        extras = {"control": {"float32": torch.full((2,), number)}}
        one, two = plain(one, Update(PARAMS)), keeping(two, Update(PARAMS, extras=extras))
        assert torch.equal(one.params["float32"], two.params["float32"])
        assert torch.equal(one.memory["velocity"]["float32"], two.memory["velocity"]["float32"])
        assert two.memory["control"]["float32"].tolist() == [number] * 2
        assert one.round == two.round


@dataclass(frozen=True)
class Told(Sgd):
    told: str = ""

    def bound(self, objective: str, partitions: str) -> Told:
        return replace(self, told=objective + partitions)


def test_the_apply_inside_is_told_what_it_works_for() -> None:
    assert KeepExtras(Told(), ()).bound("a", "b") == KeepExtras(Told(told="ab"), ())
