"""Losses and scores as people read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.rounds.commits import Commit, Score

SHARES = ("accuracy", "top5", "token_accuracy")
"""Scores that are shown as percentages."""


FORMATS = {"seconds": ".3f", "share": ".1%", "staleness": ".2f"}
"""How columns are shown that are no scores."""


def shown(name: str, value: float | None) -> str:
    """A loss or a score for people: shares in per cent, a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return format(value, ".2%" if name in SHARES else ".4f")


def shown_cell(name: str, value: Any) -> Any:
    """What a table for people has in a column: fractions as the command prints them, all else as it is."""
    if value is None or isinstance(value, float):
        form = FORMATS.get(name)
        return format(value, form) if form and value is not None else shown(name.removesuffix("_before"), value)
    return value


def shown_score(score: Score | None) -> str:
    """A loss and its scores in one line, empty where there are none."""
    named = {} if score is None else {"loss": score.loss, **score.values}
    return "  ".join(f"{name} {shown(name, value)}" for name, value in named.items())


def shown_commit(commit: Commit) -> str:
    """What is told of a round in a line: its scores, and how stale its updates were at a parameter server."""
    stale = [record.arrival.staleness for record in commit.updates.values() if record.arrival]
    told = [shown_score(commit.score)] + ([f"staleness {max(stale)}"] if stale else [])
    return "  ".join(filter(None, told))
