"""Learning rates over rounds, by hand and against torch's."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from storage.errors import UsageError
from storage.values.state import State, Update
from tasks.applies.optimizers import Sgd
from tasks.applies.schedules import SCHEDULES, Schedule, with_rounds

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


def test_a_warmup_is_a_number_of_rounds() -> None:
    with pytest.raises(UsageError, match="warmup is a number of rounds, not -1"):
        Schedule(warmup=-1)


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
