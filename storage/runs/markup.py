"""How runs and rounds look as HTML in a notebook, on light pages and on dark ones; from what is recorded alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape as escaped
from typing import Any

from storage.errors import printable
from storage.rounds.commits import Commit, Score
from storage.rounds.pruned import Pruned
from storage.rounds.store import RoundStore
from storage.values.layout import Layout

CARD = "font-size:.9em;line-height:1.45;border:1px solid rgba(128,128,128,.45);border-radius:6px"
CARD += ";padding:.5em .8em;display:inline-block;max-width:60em"

TABLE = "border:0;margin:.3em 0 0;color:inherit;font-size:inherit"  # some pages give tables their own

CELL = "text-align:left;background:none;border:0;padding:.05em 1.2em .05em 0;vertical-align:top"

COLOURS = {"complete": "#3a9d5d", "running": "#3b82c4", "failed": "#d0384a", "interrupted": "#c98a1b"}
"""Of a run's status, readable on white and on black."""


def escape(text: str) -> str:
    """A text within HTML."""
    return escaped(printable(text))


def card(title: str, remark: str, rows: Mapping[str, Any], below: str = "", colour: str = "inherit") -> str:
    """A title, a remark in a colour beside it, a row for each value that is not None, and what is below."""
    cells = "".join(
        f'<tr style="background:none"><td style="{CELL};opacity:.65">{escape(name)}</td>'
        f'<td style="{CELL}">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
        if value is not None
    )
    return (
        f'<div style="{CARD}"><b>{escape(title)}</b> <span style="color:{colour}">{escape(remark)}</span>'
        f'<table style="{TABLE}">{cells}</table>{below}</div>'
    )


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Rows of values under their heads."""
    heads = "".join(f'<th style="{CELL};font-weight:normal;opacity:.65">{escape(name)}</th>' for name in head)
    lines = ("".join(f'<td style="{CELL}">{escape(str(value))}</td>' for value in row) for row in rows)
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    return f'<table style="{TABLE}"><tr style="background:none">{heads}</tr>{body}</table>'


SHOWN_PARTITIONS = 12
"""So many partitions of a round have a row."""


def score_parts(score: Score | None) -> list[str]:
    """A score for people, its numbers one by one."""
    if score is None:
        return []
    return [f"loss {score.loss:.4g}", *(f"{name} {value:.4f}" for name, value in score.values.items())]


def run_line(store: RoundStore, rounds: int, done: int, algorithm: str, pruned: Pruned) -> str:
    """A run in a line: its rounds, of which the last one is done, what it trains, and how much is stored."""
    more, partitions = store.tensors.has_row(done + 1), store.schema.partitions
    told = (
        f"{done}/{rounds} rounds{' (1 uncommitted)' * more}",
        algorithm,
        f"{partitions} partitions",
        f"{sum(spec.size for spec in store.schema.layout.params):,} params",
        f"{store.tensors.kept_bytes(done, pruned) / 1e6:.3g} MB{' (pruned)' * bool(pruned.rounds)}",
    )
    return " · ".join(told)


def run_card(name: str, status: str, told: str, facts: Mapping[str, str | None], layout: Layout) -> str:
    """A run as HTML: what is told of it, and below its tensors."""
    specs = (*layout.params, *layout.buffers, *layout.frozen)
    tensors = table(("tensor", "type", "shape"), ((spec.name, spec.dtype, spec.shape) for spec in specs))
    folded = f"<details><summary style='opacity:.65'>{len(specs)} tensors</summary>{tensors}</details>"
    return card(name, status, {"run": told, **facts}, folded, COLOURS[status])


def round_card(commit: Commit) -> str:
    """A round as HTML: its score and state, and below what became of each partition's update.

    Where it came to a parameter server, at which turn, and from which row it began.
    """
    updates, accepted = commit.updates, len(commit.accepted)
    rows = {
        "updates": f"{accepted} accepted, {len(updates) - accepted} refused" if updates else None,
        "seconds": f"{commit.seconds:.3g}",
        "state": commit.state[:16],
    }
    metrics = list(dict.fromkeys(name for record in updates.values() for name in record.metrics))
    came = ("push", "version") if any(record.arrival for record in updates.values()) else ()
    lines = [
        (
            *(p, u.weight, u.refused or "accepted"),
            *(getattr(u.arrival, name, "") for name in came),
            *(f"{u.metrics[m]:.4g}" if m in u.metrics else "" for m in metrics),
        )
        for p, u in list(updates.items())[:SHOWN_PARTITIONS]
    ]
    below = table(("partition", "weight", "result", *came, *metrics), lines) if updates else ""
    more = len(updates) - len(lines)
    below += f'<span style="opacity:.65">and {more} more partitions</span>' if more else ""
    return card(f"Round {commit.round}", " · ".join(score_parts(commit.score)), rows, below)
