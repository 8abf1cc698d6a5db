"""Refusals about data: fields of a configuration, and words of the line that refuses them."""

from __future__ import annotations

from typing import Any

ROWS: list[tuple[dict[str, Any], str]] = [
    ({"cohort": 11, "partitions": 10}, "a cohort of 11 is more than the 10 partitions"),
]
