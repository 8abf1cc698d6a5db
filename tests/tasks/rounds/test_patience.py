"""How long a round waits for those that have not answered."""

from __future__ import annotations

import math

import pytest

from roundweave.flows.plugins.deadline import Deadline


@pytest.mark.parametrize(
    ("took", "seconds"),
    [([], math.inf), ([0.1, 0.2, 0.1], 1.0), ([2.0, 4.0, 6.0], 4.0 + 3 * 2.0), ([3.0, 3.0, 3.0, 3.0, 90.0], 3.0)],
)
def test_an_automatic_deadline_is_three_deviations_beyond_the_median(took, seconds) -> None:
    """And never less than a second."""
    assert Deadline(deadline="auto").seconds(took) == seconds
    assert Deadline(deadline=2.5).seconds(took) == 2.5
