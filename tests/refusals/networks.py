"""Refusals about networks: fields of a configuration, and words of the line that refuses them."""

from __future__ import annotations

from typing import Any

ROWS: list[tuple[dict[str, Any], str]] = []
