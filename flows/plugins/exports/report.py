"""A report of a run as one self-contained HTML page: configuration, history, plots, and results of checks."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from roundweave.flows.evidence.replaying import evenly_spread
from roundweave.flows.stored import Run
from roundweave.storage.errors import PlaceError, RoundweaveError, listed, one_line, printable
from roundweave.storage.parsing import mistakes_as
from roundweave.storage.places.base import Where, file_path
from roundweave.storage.runs.figures import PANEL
from roundweave.storage.runs.listing import flat_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from roundweave.flows.evidence.replaying import Replay

ENVIRONMENT = Environment(
    loader=PackageLoader("roundweave.flows.plugins.exports", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    finalize=lambda value: value if isinstance(value, Markup) else printable(value),
)
TEMPLATE = ENVIRONMENT.get_template("report.html")

COLOURS = {
    "complete": "#3a9d5d",
    "running": "#3b82c4",
    "failed": "#d0384a",
    "interrupted": "#c98a1b",
    "rejected": "#8b5cb3",
}
"""The colour of each status of a run, readable on white and on black."""

PAGES = (".html", ".htm")

WIDTH, HEIGHT, ROW_HEIGHT, MOST = 5.2, 3.0, 0.22, 12.0
"""In inches: a plot's width and usual height, the height per row of a heat map, and the largest height."""


def write_report(run: Run, out: Where, replay: int = 3, trust: bool = False) -> Path:
    """Write a run's report to an .html file and return its path.

    `replay` rounds are computed again, and the report says whether they are bit-identical. `trust` allows running
    code that a store outside the root holds. Raises `UsageError` for another suffix or a missing folder, and
    `PlaceError` if the file cannot be written.
    """
    place = file_path(out, "a report", PAGES)
    page = _page(run, replay, trust)
    with mistakes_as(lambda error: PlaceError(f"{place} cannot be written: {one_line(error)}"), OSError):
        place.write_text(page, encoding="utf-8")
    return place


def _page(run: Run, replay: int, trust: bool) -> str:
    return TEMPLATE.render(
        run=run,
        colour=COLOURS[run.status],
        now=_day(time.time()),
        began=_day(run.created),
        lost=listed(run.lost),
        verified=run.verify(),
        replayed=_replayed(run, replay, trust),
        pictures=_pictures(run),
        history=_history(run),
        refusals=[
            (n, run.partition_names[p], why) for n in run.committed for p, why in run.round(n).refused.items()
        ],
        config=flat_config(run.config),
    )


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _replayed(run: Run, count: int, trust: bool) -> Replay | str:
    """The replay of `count` rounds that have the state before them, or why there is none."""
    kept = {*run.kept}
    rounds = evenly_spread([number for number in run.committed if number - 1 in kept], count)
    if not rounds:
        return "there is no round" if count else "no round was asked for"
    try:
        return run.replay(rounds, trust=trust)
    except RoundweaveError as error:
        return str(error)


def _pictures(run: Run) -> dict[str, Markup | str]:
    """The plots by title, each as SVG in base64, or as a text that says why there is none."""
    drawn: dict[str, tuple[Callable[..., Axes], int]] = {
        "How it went": (run.plot.history, PANEL * len(run.plot.kinds)),
        "How far the partitions disagreed": (run.plot.divergence, run.plot.named_rows),
        "What each round changed": (run.plot.changes, len(run.tensors)),
        "Whose updates were accepted": (run.plot.refusals, run.partitions),
    }
    if not run.arrivals().empty:
        drawn["How stale updates were"] = (run.plot.staleness, 0)
    return {title: _picture(title, draw, rows) for title, (draw, rows) in drawn.items() if run.done}


def _picture(title: str, draw: Callable[..., Axes], rows: int) -> Markup | str:
    """Draw a plot for the page, or say in its place that its numbers are no longer stored."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, min(max(HEIGHT, 1.2 + ROW_HEIGHT * rows), MOST)), layout="constrained")
    try:
        axes = draw(ax=figure.subplots())
    except RoundweaveError as error:
        return str(error)
    if not axes.has_data():
        return "no round keeps the tensors for it"
    axes.set_title("")
    image = io.BytesIO()
    # Letters become outlines: a browser with another, wider font would cut them off at the edge.
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": title}):
        figure.savefig(image, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return Markup(base64.b64encode(image.getvalue()).decode())


def _history(run: Run) -> Markup:
    """The table of rounds; a missing number becomes an empty cell."""
    table, form = run.history().reset_index(), "{:.5g}".format
    return Markup(table.to_html(float_format=form, na_rep="", index=False, border=0, classes="numbers"))
