"""Outer optimizers against torch's and the papers' numbers, what they keep of extras, and rates over rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from roundweave import Adagrad, Adam, Apply, KeepExtras, Partitions, Sgd, Split, State, Update, UsageError, Yogi
from roundweave.tasks.algorithms.applies.schedules import SCHEDULES, Schedule, with_rounds
from roundweave.tasks.data.sources.images import Digits

THREE = [Adam, Yogi, Adagrad]


def walked(apply: Apply, directions: torch.Tensor) -> State:
    """The state after so many rounds along these directions, from ones."""
    params = {"float64": torch.ones(directions.shape[1], dtype=torch.float64)}
    state = State(params, memory=apply.init(params))
    for direction in directions:
        state = apply(state, Update({"float64": direction}))
    return state


def directions(steps: int) -> torch.Tensor:
    return torch.randn(steps, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@given(lr=st.floats(1e-3, 2.0), momentum=st.floats(0.0, 0.99), nesterov=st.booleans())
@settings(deadline=None, max_examples=25)
def test_steps_are_those_of_torch(lr: float, momentum: float, nesterov: bool) -> None:
    nesterov = nesterov and momentum > 0
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    theirs = torch.optim.SGD([parameter], lr=lr, momentum=momentum, nesterov=nesterov)
    for count, direction in enumerate(directions(8), 1):
        parameter.grad = direction.clone()
        theirs.step()
        state = walked(Sgd(lr, momentum, nesterov), directions(8)[:count])
        torch.testing.assert_close(state.params["float64"], parameter.detach(), rtol=1e-12, atol=1e-12)
    assert state.memory.keys() == ({"velocity"} if momentum else set())
    for slot in state.memory.values():
        velocity = theirs.state[parameter]["momentum_buffer"]
        torch.testing.assert_close(slot["float64"], velocity, rtol=1e-12, atol=1e-12)


@given(beta1=st.floats(0, 0.99), beta2=st.floats(0, 0.99), tau=st.floats(1e-4, 1), kind=st.sampled_from(THREE))
@settings(deadline=None, max_examples=25)
def test_steps_are_those_of_the_algorithm_number_by_number(beta1, beta2, tau, kind) -> None:
    decay = {} if kind is Adagrad else {"beta2": beta2}
    found = walked(kind(0.3, beta1, tau, **decay), directions(6)).params["float64"].tolist()
    for column in range(4):
        x, m, v = 1.0, 0.0, tau**2
        for d in directions(6)[:, column].tolist():
            m = beta1 * m + (1 - beta1) * d
            v = {
                Adagrad: v + d * d,
                Adam: beta2 * v + (1 - beta2) * d * d,
                Yogi: v - (1 - beta2) * d * d * math.copysign(1, v - d * d) if v != d * d else v,
            }[kind]
            x -= 0.3 * m / (math.sqrt(v) + tau)
        assert found[column] == pytest.approx(x, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", [Sgd, *THREE])
def test_the_rate_is_that_of_the_round_about_to_be_made(kind) -> None:
    """The first of a warm-up over a round is half of the rate, and all have the rate after it."""
    one, other = kind(lr=0.5, warmup=1), kind(lr=0.25)
    assert torch.equal(*(walked(apply, directions(1)).params["float64"] for apply in (one, other)))
    state = walked(kind(lr=0.5), directions(1))
    update = Update({"float64": directions(2)[1]})
    assert torch.equal(one(state, update).params["float64"], kind(lr=0.5)(state, update).params["float64"])


# Extras.


PARAMS = {"float32": torch.ones(2)}


def test_the_extras_are_added_up_beside_the_memory_of_the_apply() -> None:
    """3, then 3 + 4."""
    plain, with_extras = Sgd(0.5, 0.9), KeepExtras(Sgd(0.5, 0.9), ("control",))
    one, two = State(PARAMS, memory=plain.init(PARAMS)), State(PARAMS, memory=with_extras.init(PARAMS))
    for number, sum_of_all in ((3.0, 3.0), (4.0, 7.0)):
        extras = {"control": {"float32": torch.full((2,), number)}}
        one, two = plain(one, Update(PARAMS)), with_extras(two, Update(PARAMS, extras=extras))
        assert torch.equal(one.params["float32"], two.params["float32"])
        assert torch.equal(one.memory["velocity"]["float32"], two.memory["velocity"]["float32"])
        assert two.memory["control"]["float32"].tolist() == [sum_of_all] * 2


def test_extras_that_would_replace_the_memory_of_the_apply_or_are_not_sent_are_refused() -> None:
    with pytest.raises(UsageError, match="both the apply and its extras have a slot velocity"):
        KeepExtras(Sgd(0.5, 0.9), ("velocity",)).init(PARAMS)
    state = State(PARAMS, memory={"control": PARAMS})
    with pytest.raises(UsageError, match=r"keeps extras \['control'\], which the map does not send"):
        KeepExtras(Sgd(), ("control",))(state, Update(PARAMS))


@dataclass(frozen=True)
class Told(Sgd):
    told: str = ""

    def bound(self, objective: str, partitions: Partitions) -> Told:
        return replace(self, told=f"{objective}{partitions.split.partitions}")


def test_the_apply_inside_is_told_what_it_works_for() -> None:
    partitions = Partitions(Digits(), Split(3))
    assert KeepExtras(Told(), ()).bound("a", partitions) == KeepExtras(Told(told="a3"), (), 3)


# Schedules.


ROUNDS = 12


def factors(schedule: Schedule, rounds: int = ROUNDS) -> list[float]:
    return [schedule(round) for round in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Schedule(), [1, 1, 1, 1, 1]),
        (Schedule("constant", warmup=3), [0.25, 0.5, 0.75, 1, 1]),
        (Schedule("linear:4"), [1, 0.75, 0.5, 0.25, 0.25]),
        (Schedule("cosine:2"), [1, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_factors_by_hand(schedule: Schedule, wanted: list[float]) -> None:
    assert factors(schedule, 5) == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        (f"cosine:{ROUNDS}", lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=ROUNDS)),
        (f"linear:{ROUNDS}", lambda o: lr_scheduler.LinearLR(o, 1.0, 1e-300, total_iters=ROUNDS)),
        ("step:5:0.3", lambda o: lr_scheduler.StepLR(o, step_size=5, gamma=0.3)),
    ],
)
def test_factors_are_those_of_torch(text: str, theirs) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = theirs(optimizer)
    wanted = []
    for _ in range(ROUNDS):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert factors(Schedule(text)) == pytest.approx(wanted, rel=1e-12)


@given(st.integers(1, 10**6))
def test_a_constant_rate_keeps_its_bits(round: int) -> None:
    assert 0.1 * Schedule()(round) == 0.1


@given(st.sampled_from(["constant", "cosine", "linear", "step:3:0.5"]), st.integers(1, 50), st.integers(0, 9))
def test_no_round_stands_still_or_exceeds_the_rate(shape: str, rounds: int, warmup: int) -> None:
    schedule = Schedule(with_rounds(shape, rounds), warmup)
    assert all(0 < factor <= 1 for factor in factors(schedule, 2 * rounds))


@pytest.mark.parametrize("warmup", [-1, math.nan])
def test_a_warm_up_that_is_no_number_of_rounds_is_refused(warmup: float) -> None:
    with pytest.raises(UsageError, match=f"warmup is a number of rounds, not {warmup}"):
        Schedule(warmup=warmup)


def test_only_what_goes_over_a_run_is_given_its_rounds() -> None:
    texts = {"constant": "constant", "cosine": "cosine:9", "linear": "linear:9", "step:3:0.5": "step:3:0.5"}
    assert {text: with_rounds(text, 9) for text in texts} == texts
    assert with_rounds("cosine:5", 9) == "cosine:5"
    assert {*SCHEDULES} == {text.partition(":")[0] for text in texts}


def test_of_ten_partitions_two_move_the_mean_by_a_fifth_of_their_own() -> None:
    """Karimireddy et al. 2020, Algorithm 1, line 17: c + |S| / N times the mean change, 1 + 2 / 10 * 5."""
    with_extras = KeepExtras(Sgd(), ("control",), 10)
    state = State(PARAMS, memory={"control": {"float32": torch.ones(2)}})
    reduced = Update(PARAMS, extras={"control": {"float32": torch.full((2,), 5.0)}}, count=2)
    assert with_extras(state, reduced).memory["control"]["float32"].tolist() == [2.0, 2.0]
