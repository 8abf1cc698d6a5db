"""Sweeps over many cases, of which `make test` runs a part and `make test-slow` the rest."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def sampled(every: int, *axes: Iterable[Any], first: int = 0) -> list[Any]:
    """The product of some axes as parameters; all but each `every`-th case, from the `first` on, are slow.

    Each value of an axis is met, as where `every` shares no factor with the lengths of the axes.
    """
    return [
        pytest.param(*case, marks=() if number % every == first else pytest.mark.slow)
        for number, case in enumerate(product(*axes))
    ]
