"""Refusals about scheduled runs: fields of a configuration, and words of the line."""

from __future__ import annotations

from typing import Any

ROWS: list[tuple[dict[str, Any], str]] = []
