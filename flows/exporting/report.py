"""A report of a run as one self-contained HTML page: configuration, history, plots, and results of checks."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flows.evidence.replaying import spread
from flows.stored import Run
from storage.errors import PlaceError, RoundweaveError, listed, one_line, printable
from storage.places.addresses import Where, file_path
from storage.runs.listing import flat_config
from storage.runs.markup import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPLATE = Environment(
    loader=PackageLoader("flows.exporting", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    finalize=lambda value: value if isinstance(value, Markup) else printable(value),
).get_template("report.html")

PAGES = (".html", ".htm")

WIDTH, HEIGHT, ROW_HEIGHT, MOST = 5.2, 3.0, 0.22, 12.0
"""In inches: a plot's width and usual height, the height per row of a heat map, and the largest height."""


@dataclass(frozen=True)
class Picture:
    """A plot on the page: `source` is its SVG in base64, or None, and then `missing` says why there is none."""

    title: str
    source: Markup | None
    missing: str = ""


def write_report(run: Run, out: Where, replay: int = 3, trust: bool = False) -> Path:
    """Write a run's report to an .html file and return its path.

    `replay` rounds are computed again, and the report says whether they are bit-identical. `trust` allows running
    code that a store outside the root holds. Raises `UsageError` for another suffix or a missing folder, and
    `PlaceError` if the file cannot be written.
    """
    place = file_path(out, "a report", PAGES)
    page = _page(run, replay, trust)
    try:
        place.write_text(page, encoding="utf-8")
    except OSError as error:
        raise PlaceError(f"{place} cannot be written: {one_line(error)}") from error
    return place


def _page(run: Run, replay: int, trust: bool) -> str:
    return TEMPLATE.render(
        run=run,
        colour=COLOURS[run.status],
        now=time.strftime("%Y-%m-%d %H:%M"),
        began=time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created)),
        lost=listed(run.lost),
        verified=run.verify(),
        replayed=_replayed(run, replay, trust),
        pictures=_pictures(run),
        history=_history(run),
        refusals=[(n, p, why) for n in run.committed for p, why in run.round(n).refused.items()],
        config=flat_config(run.config),
        versions=run.attributes.get("versions", {}),
        fingerprint=run.attributes.get("fingerprint") or {},
        data=run.attributes.get("data", {}),
    )


def _replayed(run: Run, count: int, trust: bool) -> Mapping[str, Any]:
    """Replay `count` rounds: "results", differences of the "key", and in "missing" why there are no results."""
    stored_states = run.kept
    rounds = spread([number for number in run.committed if number - 1 in stored_states], count)
    if not rounds:
        return {
            "results": (),
            "key": {},
            "missing": "no round was asked for" if not count else "there is no round",
        }
    try:
        replay = run.replay(rounds, trust=trust)
    except RoundweaveError as error:
        return {"results": (), "key": {}, "missing": str(error)}
    return {"results": replay.results, "key": replay.key, "missing": ""}


def _pictures(run: Run) -> list[Picture]:
    names = len(run.tensors)
    drawn: dict[str, tuple[Callable[..., Axes], int]] = {
        "How it went": (run.plot.history, 0),
        "How far the partitions disagreed": (run.plot.divergence, 0),
        "What each round changed": (run.plot.changes, names),
        "Whose updates were accepted": (run.plot.refusals, run.partitions),
    }
    if not run.arrivals().empty:
        drawn["How stale updates were"] = (run.plot.staleness, 0)
    return [_picture(title, draw, rows) for title, (draw, rows) in drawn.items() if run.done]


def _picture(title: str, draw: Callable[..., Axes], rows: int) -> Picture:
    """Draw a plot for the page, or say in its place that its numbers are no longer stored."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, min(max(HEIGHT, 1.2 + ROW_HEIGHT * rows), MOST)), layout="constrained")
    try:
        axes = draw(ax=figure.subplots())
    except RoundweaveError as error:
        return Picture(title, None, str(error))
    if not axes.has_data():
        return Picture(title, None, "no round keeps the tensors for it")
    axes.set_title("")
    image = io.BytesIO()
    # Letters become outlines: a browser with another, wider font would cut them off at the edge.
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": title}):
        figure.savefig(image, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return Picture(title, Markup(base64.b64encode(image.getvalue()).decode()))


def _history(run: Run) -> tuple[list[str], list[list[str]]]:
    """The column names and rows of the table of rounds; a missing number becomes an empty cell."""
    table = run.history()
    whole = {"round", "accepted", "examples"}
    rows = [
        [
            "" if isnan(value) else f"{value:.0f}" if name in whole else f"{value:.5g}"
            for name, value in row.items()
        ]
        for row in table.reset_index().to_dict("records")
    ]
    return [str(name) for name in table.reset_index().columns], rows
