"""Cases of a parametrized test that are of the second suite."""

from __future__ import annotations

from typing import Any

import pytest


def second(*cases: Any) -> list[Any]:
    """Each case as parameters, a tuple as several."""
    each = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*values, marks=pytest.mark.thorough) for values in each]
