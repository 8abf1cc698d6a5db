"""Rows of parametrized tests: some, chosen for what they find, are in the first suite, the rest in the second."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def second(*rows: Any) -> list[Any]:
    """Rows, each a value or a tuple, that are thorough."""
    return [pytest.param(*_row(row), marks=pytest.mark.thorough) for row in rows]


def but_first(first: Iterable[Any], *others: Iterable[Any]) -> list[Any]:
    """Rows, each a value or a tuple: those of `first`; of others, or the product of several axes, as thorough."""
    chosen = [_row(row) for row in first]
    rows = product(*others) if len(others) > 1 else map(_row, others[0])
    return [*(pytest.param(*row) for row in chosen), *second(*(row for row in rows if row not in chosen))]


def _row(row: Any) -> tuple[Any, ...]:
    return row if isinstance(row, tuple) else (row,)
