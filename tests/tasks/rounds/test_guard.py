"""What is refused of an update, and in which words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave.storage.errors import RoundFailed
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec, Vectors
from roundweave.tasks.rounds.guard import check_buffers, checked_update, non_finite


def fault(layout: Layout, update: Update, buffers: Vectors | None = None) -> str | None:
    """Why an update is refused, by a map that declares the slots that it has and was given such buffers."""
    return checked_update(layout, update, buffers or {}, tuple(update.carry), tuple(update.extras))[1]


LAYOUT = Layout(
    params=(TensorSpec("fc.weight", "float32", (2, 2)), TensorSpec("fc.bias", "float32", (2,))),
    buffers=(TensorSpec("count", "int64", ()), TensorSpec("mean", "float32", (2,)), TensorSpec("on", "bool", ())),
)


def vector(**bad: float) -> dict[str, torch.Tensor]:
    numbers = torch.zeros(6)
    for place, value in bad.items():
        numbers[int(place[1:])] = value
    return {"float32": numbers}


BUFFERS = {"int64": torch.tensor([3]), "float32": torch.zeros(2), "bool": torch.tensor([True])}
SOUND = Update(vector(), BUFFERS, {"control": vector()}, 5, {"train_loss": 1.0}, {"variate": vector()})


def test_a_sound_update_has_no_fault() -> None:
    assert fault(LAYOUT, SOUND) is None
    assert fault(LAYOUT, Update(vector(_0=3e38), BUFFERS)) is None


UNSOUND = [
    ({"direction": vector(_0=math.nan)}, "direction of fc.weight has 1 non-finite of 4 numbers"),
    ({"direction": vector(_3=math.inf)}, "direction of fc.weight has 1 non-finite of 4 numbers"),
    ({"direction": vector(_4=-math.inf)}, "direction of fc.bias has 1 non-finite of 2 numbers"),
    ({"extras": {"control": vector(_4=math.nan, _5=math.inf)}}, "extras/control of fc.bias has 2 non-finite of 2"),
    ({"carry": {"variate": vector(_4=math.nan)}}, "carry/variate of fc.bias has 1 non-finite of 2 numbers"),
    ({"buffers": BUFFERS | {"float32": torch.tensor([0, math.nan])}}, "buffers of mean has 1 non-finite of 2"),
    ({"direction": {}}, "direction is misshapen: "),
    ({"direction": {"float32": torch.zeros(5)}}, "direction is misshapen: "),
    ({"direction": {"float32": torch.zeros(3, 2)}}, "direction is misshapen: "),
    ({"direction": {"float32": torch.zeros(6).to_sparse()}}, "direction is misshapen: "),
    ({"direction": {"float64": torch.zeros(6).double()}}, "direction is misshapen: "),
    ({"direction": vector() | {"float64": torch.zeros(1).double()}}, "direction is misshapen: "),
    ({"direction": {"float32": torch.zeros(6).double()}}, "direction is misshapen: "),
    ({"buffers": {}}, "buffers is misshapen: "),
    ({"buffers": BUFFERS | {"int64": torch.zeros(2).long()}}, "buffers is misshapen: "),
    ({"extras": {"control": {}}}, "extras/control is misshapen: "),
    ({"carry": {"variate": {"float32": torch.zeros(7)}}}, "carry/variate is misshapen: "),
    *(
        ({"weight": each}, "is no positive integer of 53 bits")
        for each in (0, 1.0, math.nan, None, torch.tensor(3.0), 2**53)
    ),
    *(({kind: None}, f"{kind} is no mapping but of type NoneType") for kind in ("carry", "extras", "metrics")),
    *(
        ({"metrics": {"gain": x}}, "metric 'gain' is no number, but ")
        for x in ("much", [1.0], torch.ones(2), 10**400)
    ),
    ({"metrics": {"../up": 1.0}}, "'../up' is no metric's name"),
]


@pytest.mark.parametrize(("change", "says"), UNSOUND, ids=range(len(UNSOUND)))
def test_what_is_unsound_is_refused_by_name(change, says: str) -> None:
    update, reason = checked_update(LAYOUT, replace(SOUND, **change), {}, ("variate",), ("control",))
    assert says in reason
    assert "metrics" not in change or update.metrics == {}


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
def test_a_buffer_that_was_not_finite_before_may_stay_as_it_was(value: float) -> None:
    """Such as the causal mask of a decoder, which holds -inf for what is not to be seen."""
    masked = BUFFERS | {"float32": torch.tensor([0.0, value])}
    update = replace(SOUND, buffers=masked)
    assert fault(LAYOUT, update, masked) is None
    assert fault(LAYOUT, SOUND, masked) is None
    reason = "buffers of mean has 1 non-finite of 2 numbers"
    assert fault(LAYOUT, update, BUFFERS) == reason
    other = math.inf if value != math.inf else math.nan
    assert fault(LAYOUT, update, masked | {"float32": torch.tensor([0.0, other])}) == reason
    assert fault(LAYOUT, replace(SOUND, buffers=masked | {"float32": torch.tensor([value] * 2)}), masked) == reason


@given(st.lists(st.sampled_from([1.0, -3.4e38, 3.4e38, float("inf"), float("-inf"), float("nan")]), min_size=1))
def test_numbers_are_finite_where_each_is_whatever_their_sum(numbers) -> None:
    vector = torch.tensor(numbers)
    assert (non_finite([TensorSpec("w", "float32", (len(numbers),))], {"float32": vector}) is None) == bool(
        vector.isfinite().all()
    )


def test_an_apply_that_forgets_the_buffers_is_told_so_and_may_keep_them_on_purpose() -> None:
    before, reduced = State(vector(), BUFFERS), Update(vector(), {**BUFFERS})
    for after, update in (
        (replace(before, buffers=reduced.buffers), reduced),
        (replace(before, buffers=dict(before.buffers)), reduced),
        (before, Update(vector())),
        (before, Update(vector(), before.buffers)),
    ):
        check_buffers(after, before, update)
    with pytest.raises(RoundFailed, match=r"round 1: the apply left the buffers as they were"):
        check_buffers(replace(before, params=vector(_0=1.0)), before, reduced)
