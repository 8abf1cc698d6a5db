"""Outer optimizers by hand and against torch's, their memory, and learning rates over rounds."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.tasks.algorithms.applies.optimizers import Adagrad, Adam, Adaptive, KeepExtras, Sgd, Yogi
from roundweave.tasks.algorithms.applies.schedules import SCHEDULES, Schedule, with_rounds
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.data.splits.split import Split


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
    state = State({"bfloat16": start}, memory={"velocity": {"bfloat16": start}})
    after = Sgd(0.1, momentum=0.9)(state, Update({"bfloat16": direction}))
    velocity = 0.9 * start.float() + direction.float()
    assert torch.equal(after.memory["velocity"]["bfloat16"], velocity.bfloat16())
    assert torch.equal(after.params["bfloat16"], (start.float() - 0.1 * velocity).bfloat16())
    assert not torch.equal(found, start - 0.1 * direction)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_has_the_type_of_the_parameters(dtype) -> None:
    apply = Sgd(0.1, 0.9)
    params = {dtype: torch.ones(2, dtype=getattr(torch, dtype))}
    state = apply(State(params, memory=apply.init(params)), Update(params))
    assert state.memory["velocity"][dtype].dtype == params[dtype].dtype


PARAMS = {"float32": torch.ones(2)}


def test_the_extras_are_added_up_beside_the_memory_of_the_apply() -> None:
    """3, then 3 + 4."""
    plain, with_extras = Sgd(0.5, 0.9), KeepExtras(Sgd(0.5, 0.9), ("control",))
    one, two = State(PARAMS, memory=plain.init(PARAMS)), State(PARAMS, memory=with_extras.init(PARAMS))
    assert two.memory["control"]["float32"].tolist() == [0, 0]
    for number, sum_of_all in ((3.0, 3.0), (4.0, 7.0)):
        extras = {"control": {"float32": torch.full((2,), number)}}
        one, two = plain(one, Update(PARAMS)), with_extras(two, Update(PARAMS, extras=extras))
        assert torch.equal(one.params["float32"], two.params["float32"])
        assert torch.equal(one.memory["velocity"]["float32"], two.memory["velocity"]["float32"])
        assert two.memory["control"]["float32"].tolist() == [sum_of_all] * 2
        assert one.round == two.round


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


def test_of_ten_partitions_two_move_the_mean_by_a_fifth_of_their_own() -> None:
    """Karimireddy et al. 2020, Algorithm 1, line 17: c + |S| / N times the mean change, 1 + 2 / 10 * 5."""
    with_extras = KeepExtras(Sgd(), ("control",), 10)
    state = State(PARAMS, memory={"control": {"float32": torch.ones(2)}})
    reduced = Update(PARAMS, extras={"control": {"float32": torch.full((2,), 5.0)}}, count=2)
    assert with_extras(state, reduced).memory["control"]["float32"].tolist() == [2.0, 2.0]


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


ROUNDS = 12


def factors(schedule: Schedule, rounds: int = ROUNDS) -> list[float]:
    return [schedule(round) for round in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Schedule(), [1, 1, 1, 1, 1]),
        (Schedule("constant", warmup=3), [0.25, 0.5, 0.75, 1, 1]),
        (Schedule("linear:4"), [1, 0.75, 0.5, 0.25, 0.25]),
        (Schedule("step:2:0.5"), [1, 1, 0.5, 0.5, 0.25]),
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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cosin:3", "unknown schedule 'cosin:3'; did you mean cosine"),
        ("cosine", "schedule 'cosine' must be written cosine:ROUNDS"),
        ("cosine:many", "must be written cosine:ROUNDS"),
        ("step:3", "must be written step:EVERY:FACTOR"),
        ("constant:3", "must be written constant"),
        ("linear:0", "schedule linear counts rounds from 1, not 0"),
        ("step:2:2.0", r"a factor in \(0, 1\], not 2.0"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Schedule(text)


@pytest.mark.parametrize("warmup", [-1, float("inf"), float("nan")])
def test_a_warmup_is_a_number_of_rounds(warmup: float) -> None:
    with pytest.raises(UsageError, match=f"warmup is a number of rounds, not {warmup}"):
        Schedule(warmup=warmup)


def test_only_what_goes_over_a_run_is_given_its_rounds() -> None:
    texts = ["constant", "cosine", "linear", "cosine:5", "step:3:0.5"]
    assert [with_rounds(text, 9) for text in texts] == [
        "constant",
        "cosine:9",
        "linear:9",
        "cosine:5",
        "step:3:0.5",
    ]
    assert set(SCHEDULES) == {text.partition(":")[0] for text in texts}


def test_it_is_a_value() -> None:
    schedule = Schedule("cosine:9", 2)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert repr(schedule) == "Schedule(shape='cosine:9', warmup=2)"


def test_the_outer_optimizer_takes_the_rate_of_the_round_about_to_be_made() -> None:
    """From 1 along 1 and 1, with lr 0.5 that halves after a round."""
    state = State({"float32": torch.ones(1)})
    for wanted in (0.5, 0.25):
        state = Sgd(0.5, lr_schedule="step:1:0.5")(state, Update({"float32": torch.ones(1)}))
        assert state.params["float32"].item() == wanted
