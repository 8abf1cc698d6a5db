"""Matrices of cases of which some, chosen for what they find, are in the first suite, the rest in the second."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def but_first(first: Iterable[Any], *axes: Iterable[Any]) -> list[Any]:
    """The product of some axes as parameters; all but those of `first`, by value or as a tuple, are thorough."""
    chosen = [each if isinstance(each, tuple) else (each,) for each in first]
    cases = list(product(*axes))
    assert all(each in cases for each in chosen)
    return [pytest.param(*case, marks=() if case in chosen else pytest.mark.thorough) for case in cases]
