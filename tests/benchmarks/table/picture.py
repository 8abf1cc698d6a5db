"""The ratios as bars on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tests.benchmarks.table.measuring import Line
from tests.benchmarks.table.rows.base import EXECUTORS

HEIGHT = 0.26
"""Of a bar, where lines are one apart."""

COLOURS = dict(zip(EXECUTORS, ("#4c78a8", "#f58518", "#54a24b"), strict=True))


def draw(lines: Sequence[Line], file: Path) -> None:
    """Times of ours over those of each peer, a group of bars a line, the first at the top."""
    shown = [line for line in lines if any(ours.ratio for ours in line.ours.values())]
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.5 * len(shown)), layout="constrained")
    for place, line in enumerate(shown):
        _group(axes, place, line)
    axes.set_yticks(range(len(shown)), [f"{line.row}: {line.peer}, {line.reading}" for line in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xscale("log", base=2)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("time of Roundweave / time of the peer\nleft of 1 Roundweave is faster; black: the target")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(
        [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()],
        COLOURS,
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=len(COLOURS),
        frameon=False,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _group(axes: Axes, place: int, line: Line) -> None:
    """The bars of one line, from 1 to their ratio, and its target."""
    axes.vlines(line.target, place - 0.5, place + 0.5, color="black", linewidth=0.8)
    for offset, name in enumerate(EXECUTORS):
        ours = line.ours.get(name)
        if ours is None or ours.ratio is None:
            continue
        height = place + (offset - 1) * HEIGHT
        axes.barh(height, ours.ratio - 1, HEIGHT, left=1, color=COLOURS[name])
        side = 4 if ours.ratio >= 1 else -4
        axes.annotate(
            f"{ours.ratio:.2f}",
            (ours.ratio, height),
            (side, 0),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=7,
        )
