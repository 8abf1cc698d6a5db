"""The HTML of runs and rounds in a notebook, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape as escaped
from typing import Any

from roundweave.storage.errors import printable
from roundweave.storage.rounds.commits import Commit, Score
from roundweave.storage.rounds.pruned import Pruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.layout import Layout

CARD = "font-size:.9em;line-height:1.45;border:1px solid rgba(128,128,128,.45);border-radius:6px"
CARD += ";padding:.5em .8em;display:inline-block;max-width:min(60em,100%);box-sizing:border-box;overflow-x:auto"

TABLE = "border:0;margin:.3em 0 0;color:inherit;font-size:inherit"  # some pages give tables their own

CELL = "text-align:left;background:none;border:0;padding:.05em 1.2em .05em 0;vertical-align:top"

COLOURS = {"complete": "#3a9d5d", "running": "#3b82c4", "failed": "#d0384a", "interrupted": "#c98a1b"}
"""The colour of each status of a run, readable on white and on black."""


def escape(text: str) -> str:
    """A text escaped for HTML, without control characters."""
    return escaped(printable(text))


def card(title: str, remark: str, rows: Mapping[str, Any], below: str = "", colour: str = "inherit") -> str:
    """A card with a title, a coloured remark beside it, a row for each value but None, and HTML `below`."""
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


def html_table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """An HTML table of rows of values under a row of heads."""
    heads = "".join(f'<th style="{CELL};font-weight:normal;opacity:.65">{escape(name)}</th>' for name in head)
    lines = ("".join(f'<td style="{CELL}">{escape(str(value))}</td>' for value in row) for row in rows)
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    return f'<table style="{TABLE}"><tr style="background:none">{heads}</tr>{body}</table>'


SHOWN_PARTITIONS = 12
"""The card of a round shows at most so many partitions."""


def score_parts(score: Score | None) -> list[str]:
    """The numbers of a score as texts to show, such as ``loss 0.5``; none without a score."""
    if score is None:
        return []
    return [f"loss {score.loss:.4g}", *(f"{name} {value:.4f}" for name, value in score.values.items())]


def run_line(store: RoundStore, rounds: int, last: Commit, algorithm: str, pruned: Pruned) -> str:
    """A run in one line: its rounds up to the `last` committed one, algorithm, partitions and stored bytes.

    The bytes are those of rounds that each have as many updates as the last one.
    """
    done, cohort = last.round, len(last.updates)
    more, partitions = store.tensors.has_row(done + 1), store.schema.partitions
    parts = (
        f"{done}/{rounds} rounds{' (1 uncommitted)' * more}",
        algorithm,
        f"{partitions} partitions",
        f"{sum(spec.size for spec in store.schema.layout.params):,} params",
        f"{store.tensors.kept_bytes(done, pruned, cohort) / 1e6:.3g} MB{' (pruned)' * bool(pruned.rounds)}",
    )
    return " · ".join(parts)


def run_card(name: str, status: str, line: str, facts: Mapping[str, str | None], layout: Layout) -> str:
    """The card of a run as HTML: its `run_line`, facts by name, and a foldable table of its tensors."""
    specs = (*layout.params, *layout.buffers, *layout.frozen)
    tensors = html_table(("tensor", "type", "shape"), ((spec.name, spec.dtype, spec.shape) for spec in specs))
    folded = f"<details><summary style='opacity:.65'>{len(specs)} tensors</summary>{tensors}</details>"
    return card(name, status, {"run": line, **facts}, folded, COLOURS[status])


def round_card(commit: Commit) -> str:
    """The card of a round as HTML: its score and state, and a table of the partitions' updates.

    For a parameter server, the table also has the push and the version of each update.
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
    below = html_table(("partition", "weight", "result", *came, *metrics), lines) if updates else ""
    more = len(updates) - len(lines)
    below += f'<span style="opacity:.65">and {more} more partitions</span>' if more else ""
    return card(f"Round {commit.round}", " · ".join(score_parts(commit.score)), rows, below)
