"""The adaptive outer optimizers, by hand and against a plain loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.values.state import State, Update
from tasks.applies.optimizers import Adagrad, Adam, Adaptive, Yogi

THREE = [Adam, Yogi, Adagrad]


def walked(apply: Adaptive, directions: list[list[float]], start: list[float], dtype: str = "float64") -> State:
    params = {dtype: torch.tensor(start, dtype=getattr(torch, dtype))}
    state = State(params, memory=apply.init(params))
    for direction in directions:
        state = apply(state, Update({dtype: torch.tensor(direction, dtype=getattr(torch, dtype))}))
    return state


def test_two_steps_of_yogi_by_hand() -> None:
    """tau = 1, beta1 = beta2 = 0.5, lr = 1, along 2 and then 1.

    m: 1, then 1. v from 1: 1 + 4/2 = 3 (1 < 4), then 3 - 1/2 = 2.5 (3 > 1).
    """
    apply = Yogi(lr=1.0, beta1=0.5, beta2=0.5, tau=1.0)
    first = -1 / (math.sqrt(3) + 1)
    assert walked(apply, [[2.0]], [0.0]).params["float64"].item() == pytest.approx(first)
    after = walked(apply, [[2.0], [1.0]], [0.0])
    assert after.params["float64"].item() == pytest.approx(first - 1 / (math.sqrt(2.5) + 1))
    assert {slot: vectors["float64"].item() for slot, vectors in after.memory.items()} == {
        "first": 1,
        "second": 2.5,
    }


def test_two_steps_of_adam_by_hand() -> None:
    """As above, but v: 0.5 + 2 = 2.5, then 1.25 + 0.5 = 1.75."""
    after = walked(Adam(lr=1.0, beta1=0.5, beta2=0.5, tau=1.0), [[2.0], [1.0]], [0.0])
    wanted = -1 / (math.sqrt(2.5) + 1) - 1 / (math.sqrt(1.75) + 1)
    assert after.params["float64"].item() == pytest.approx(wanted)


def test_two_steps_of_adagrad_by_hand() -> None:
    """tau = 2, so v: 4 + 12.25 = 16.25, then + 8.75 (of a direction of that square root) = 25."""
    direction = math.sqrt(8.75)
    after = walked(Adagrad(lr=1.0, tau=2.0), [[3.5], [direction]], [0.0])
    assert after.params["float64"].item() == pytest.approx(-3.5 / (math.sqrt(16.25) + 2) - direction / 7)
    assert after.memory["second"]["float64"].item() == pytest.approx(25.0)


@given(beta1=st.floats(0, 0.99), beta2=st.floats(0, 0.99), tau=st.floats(1e-4, 1), kind=st.sampled_from(THREE))
@settings(deadline=None, max_examples=25)
def test_steps_are_those_of_the_algorithm_number_by_number(beta1, beta2, tau, kind) -> None:
    generator = torch.Generator().manual_seed(3)
    directions = torch.randn(6, 4, generator=generator).double().tolist()
    decay = {} if kind is Adagrad else {"beta2": beta2}
    found = walked(kind(0.3, beta1, tau, **decay), directions, [1.0] * 4).params["float64"].tolist()
    for column in range(4):
        x, m, v = 1.0, 0.0, tau**2
        for row in directions:
            d = row[column]
            m = beta1 * m + (1 - beta1) * d
            v = {
                Adagrad: v + d * d,
                Adam: beta2 * v + (1 - beta2) * d * d,
                Yogi: v - (1 - beta2) * d * d * math.copysign(1, v - d * d) if v != d * d else v,
            }[kind]
            x -= 0.3 * m / (math.sqrt(v) + tau)
        assert found[column] == pytest.approx(x, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", THREE)
def test_a_step_is_no_longer_than_the_rate_allows_however_long_the_direction(kind: type[Adaptive]) -> None:
    """The first m / sqrt(v) is (1 - beta1) / sqrt(1 - beta2) = 1 for Adam and Yogi, and 1 for Adagrad."""
    after = walked(kind(lr=0.01), [[1e6, -1e6, 0.0]], [0.0] * 3)
    assert after.params["float64"].tolist() == pytest.approx([-0.01, 0.01, 0.0], rel=1e-3)


@pytest.mark.parametrize("kind", THREE)
def test_bfloat16_is_stepped_in_float32_and_remembered_in_bfloat16(kind: type[Adaptive]) -> None:
    after = walked(kind(lr=0.5), [[0.3, -0.7]], [1.0, 2.0], "bfloat16")
    direction = torch.tensor([0.3, -0.7]).bfloat16().float()
    wide = {"float32": torch.tensor([1.0, 2.0])}
    # tau^2, too, is remembered in bfloat16.
    memory = {
        k: {"float32": v["bfloat16"].float()}
        for k, v in kind().init({"bfloat16": wide["float32"].bfloat16()}).items()
    }
    wanted = kind(lr=0.5)(State(wide, memory=memory), Update({"float32": direction}))
    assert torch.equal(after.params["bfloat16"], wanted.params["float32"].bfloat16())
    assert {vectors["bfloat16"].dtype for vectors in after.memory.values()} == {torch.bfloat16}


@pytest.mark.parametrize("kind", THREE)
def test_neither_the_state_nor_the_update_is_changed_and_buffers_arrive(kind: type[Adaptive]) -> None:
    apply = kind()
    params = {"float32": torch.ones(2)}
    state = State(params, {"int64": torch.tensor([1])}, memory=apply.init(params))
    update = Update({"float32": torch.ones(2)}, {"int64": torch.tensor([5])})
    after = apply(state, update)
    assert (state.round, after.round, after.buffers["int64"].item()) == (0, 1, 5)
    assert state.params["float32"].tolist() == update.direction["float32"].tolist() == [1, 1]
    assert state.memory["first"]["float32"].tolist() == [0, 0]
    assert apply(state, Update({"float32": torch.ones(2)})).buffers["int64"].item() == 1


@pytest.mark.parametrize("kind", THREE)
def test_the_rate_is_that_of_the_round_about_to_be_made(kind: type[Adaptive]) -> None:
    halved = walked(kind(lr=0.5, lr_schedule="constant", warmup=1), [[2.0]], [0.0])
    assert torch.equal(halved.params["float64"], walked(kind(lr=0.25), [[2.0]], [0.0]).params["float64"])
