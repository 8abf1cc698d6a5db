"""Rows of parametrized tests: some, chosen for what they find, are in the first suite, the rest in the second."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def but_first(first: Iterable[Any], *others: Iterable[Any]) -> list[Any]:
    """Rows, each a value or a tuple: those of `first`; of others, or the product of several axes, as thorough."""
    chosen = [_row(each) for each in first]
    cases = product(*others) if len(others) > 1 else map(_row, others[0])
    more = [pytest.param(*case, marks=pytest.mark.thorough) for case in cases if case not in chosen]
    return [*(pytest.param(*case) for case in chosen), *more]


def _row(each: Any) -> tuple[Any, ...]:
    return each if isinstance(each, tuple) else (each,)
