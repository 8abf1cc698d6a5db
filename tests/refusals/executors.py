"""Refusals about executors: fields of a configuration, and words of the line that refuses them."""

from __future__ import annotations

from typing import Any

ROWS: list[tuple[dict[str, Any], str]] = [
    ({"executor": "inline", "deadline": 5}, "executor inline waits for each map"),
    ({"executor": "graph", "deadline": "soon"}, "seconds after which a round that has its quorum goes on"),
    ({"executor": "graph", "deadline": 0}, "seconds after which a round that has its quorum goes on"),
    ({"executor": "graph", "deadline": 5, "algorithm": "downpour"}, "a parameter server waits for nobody"),
]
