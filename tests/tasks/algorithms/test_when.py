"""When updates are applied: who fetches when, and what becomes of what is stale."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundweave import Asynchronous, UsageError


@given(push=st.integers(1, 5), times=st.integers(1, 5))
def test_a_partition_fetches_after_every_so_many_steps(push: int, times: int) -> None:
    """Dean et al. 2012, Algorithm 1: a step fetches where fetch_every divides its number, from 0."""
    when = Asynchronous(push_every=push, fetch_every=push * times)
    by_step = [step for step in range(60 * push) if step % when.fetch_every == 0]
    assert [(number - 1) * push for number in range(1, 61) if when.fetches(number)] == by_step


def test_what_is_stale_is_refused_or_scaled_by_hand() -> None:
    def seen(**options: object) -> list[str | float]:
        when = Asynchronous(**options)
        return [when.refusal(staleness) or when.factor(staleness) for staleness in (0, 1, 2, 3)]

    assert seen() == [1.0, 1.0, 1.0, 1.0]
    assert seen(max_staleness=0) == [1.0, *(f"staleness {s} is above 0" for s in (1, 2, 3))]
    assert seen(max_staleness=2) == [1.0, 1.0, 1.0, "staleness 3 is above 2"]
    assert seen(stale="scale") == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert seen(stale="scale", max_staleness=1) == [1.0, 1.0, 1 / 3, 1 / 4]


@pytest.mark.parametrize("option", ["buffer", "push_every", "fetch_every"])
def test_numbers_begin_at_one(option: str) -> None:
    with pytest.raises(UsageError, match="fetch_every, push_every and buffer must be 1 or more"):
        Asynchronous(**{option: 0})
