"""Losses, scores and staleness as text for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundweave.storage.rounds.commits import Commit, Score

SHARES = ("accuracy", "top5", "token_accuracy")
"""Scores that are shown as percentages."""


FORMATS = {"seconds": ".3f", "share": ".1%", "staleness": ".2f"}
"""Number formats of table columns that are not scores."""


def shown(name: str, value: float | None) -> str:
    """A loss or a score as text: scores named in `SHARES` as percentages, a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "–"
    return format(value, ".2%" if name in SHARES else ".4f")


def shown_cell(name: str, value: Any) -> Any:
    """A table's cell for people: floats and None as text, all other values unchanged."""
    if value is None or isinstance(value, float):
        form = FORMATS.get(name)
        return format(value, form) if form and value is not None else shown(name.removesuffix("_before"), value)
    return value


def shown_score(score: Score | None) -> str:
    """A loss and its scores in one line; empty text for None."""
    named = {} if score is None else {"loss": score.loss, **score.values}
    return "  ".join(f"{name} {shown(name, value)}" for name, value in named.items())


def shown_staleness(commit: Commit) -> str:
    """The largest staleness of a round's updates; empty text without a parameter server."""
    stale = [record.arrival.staleness for record in commit.updates.values() if record.arrival]
    return f"staleness {max(stale)}" if stale else ""


def shown_commit(commit: Commit) -> str:
    """A round in one line: its scores, and its staleness if it has a parameter server."""
    return "  ".join(filter(None, [shown_score(commit.score), shown_staleness(commit)]))
