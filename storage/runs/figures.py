"""Plots of stored runs. Each is drawn on `ax`, or on new axes where that is None, and returns the axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roundweave.storage.errors import UsageError, nearest, short
from roundweave.storage.places.base import Where, file_path
from roundweave.storage.rounds.commits import derived_of
from roundweave.storage.runs.measures import arrivals as came
from roundweave.storage.runs.measures import changes, divergence
from roundweave.storage.runs.run import StoredRun

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

OF = {"train": "training", "": "held out"}
"""What lines say of the columns of a score in a history that are named so before it; the first word of others."""


PANEL = 7
"""A panel of a score is as high as so many rows of a colour map."""


DIVERGENCE = {"relative": "distance / norm of the mean", "cosine": "cosine with the mean", "norm": "distance"}
"""The measures of `Run.divergence`, and the labels of their axes."""


OUTCOMES = {"took no part": "#dcdcdc", "accepted": "#8cb4d8", "refused": "#c2283c", "absent": "#e0a030"}
"""What may become of a partition's update in a round, and its colour."""


LINES = 10
"""Up to so many partitions are drawn as a line each, and more as a colour map."""


NAMES = 40
"""At most about so many rows of a colour map have labels."""


CELLS = 1_000_000
"""The most cells of a colour map."""


PLOTS = (".png", ".pdf", ".svg")
"""The suffixes of files that a figure may be written to."""


def check_plot(place: Where) -> Path:
    """Return the path of a figure to write.

    Raises `UsageError` for a wrong suffix or a place that cannot be written.
    """
    return file_path(place, "a plot", PLOTS)


@dataclass(frozen=True)
class Plots:
    """The plots of a run, as ``run.plot`` offers them."""

    run: StoredRun

    @property
    def kinds(self) -> list[str]:
        """The loss and the scores that have a panel in `history`; the others are of one of these on partitions."""
        names = ["loss", *self.run.scores]
        return [name for name in names if derived_of(name) not in names]

    @property
    def named_rows(self) -> int:
        """How many rows of the colour map of `divergence` have names, which need some height."""
        names = self.run.partition_names
        return 0 if isinstance(names, range) or len(names) <= LINES else len(names)

    def history(self, ax: Axes | None = None) -> Axes:
        """Draw losses over rounds, and each kind of score in a panel of its own below them.

        Args:
            ax: The axes to draw on, whose place the panels divide; new ones where None.

        Returns:
            The axes, which are the panel of the losses.

        Example:
            >>> run.plot.history().figure.savefig("history.png")
        """
        history, kinds = self.run.history(), self.kinds
        ax, drawn = ax or plot_axes(PANEL * len(kinds)), {}
        words = sorted({str(name).partition("_")[0] for name in history if derived_of(str(name)) in kinds})
        labels = OF | {word: word for word in words if word not in OF}
        for panel, kind in zip(split_axes(ax, len(kinds)), kinds, strict=True):
            for number, (of, label) in enumerate(labels.items()):
                for line in draw_columns(history, [f"{of}_{kind}" if of else kind], panel):
                    line.set(color=f"C{number}", label=label)
                    drawn[label] = line
            panel.set_title(_shown(kind), loc="left", fontsize="medium")
            panel.label_outer()
        ax.set_title(_shown(self.run.name))
        legend_below(panel, [drawn[label] for label in labels.values() if label in drawn])
        return ax

    def divergence(self, measure: str = "relative", ax: Axes | None = None) -> Axes:
        """Draw how far the partitions' updates lie from their mean: lines, or a colour map from 11 partitions on.

        Args:
            measure: ``"relative"``, ``"cosine"`` or ``"norm"``; see `Run.divergence`.
            ax: The axes to draw on; new ones where None.

        Returns:
            The axes.

        Raises:
            UsageError: There is no such measure, or the map would be too large.

        Example:
            >>> run.plot.divergence("cosine")
        """
        if measure not in DIVERGENCE:
            hint = nearest(measure, DIVERGENCE, f"there are {', '.join(DIVERGENCE)}")
            raise UsageError(f"no measure {measure!r}; {hint}")
        table = divergence(self.run)[[measure]].droplevel(0, axis=1).loc[1:]
        ax = ax or plot_axes(self.named_rows)
        if self.run.partitions > LINES:
            draw_map(table, ax, DIVERGENCE[measure])
            ax.set_ylabel("partition")
        else:
            legend_aside(ax, draw_columns(table, table.columns, ax), "partition")
            ax.set_ylabel(DIVERGENCE[measure])
        ax.set_title(_shown(f"{self.run.name}: updates around their mean"))
        return ax

    def changes(self, ax: Axes | None = None) -> Axes:
        """Draw how much each round changed each parameter, as a colour map with a logarithmic scale.

        A colour stands for the norm of the change divided by the norm before.

        Args:
            ax: The axes to draw on; new ones where None.

        Returns:
            The axes.

        Raises:
            UsageError: The map would be too large.

        Example:
            >>> run.plot.changes()
        """
        from matplotlib.colors import LogNorm

        table = changes(self.run)
        table = table.where(table > 0)
        ax = ax or plot_axes(len(table.columns))
        scale = LogNorm() if table.notna().any(axis=None) else None  # without numbers it has no limits
        draw_map(table, ax, "norm of the change / norm before", norm=scale)
        ax.set_title(_shown(f"{self.run.name}: changes of the parameters"))
        return ax

    def refusals(self, ax: Axes | None = None) -> Axes:
        """Draw which partitions took part in each round, and whether their updates were accepted or refused.

        Args:
            ax: The axes to draw on; new ones where None.

        Returns:
            The axes.

        Raises:
            UsageError: The map would be too large.

        Example:
            >>> run.plot.refusals()
        """
        import pandas as pd
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        from roundweave.storage.runs.arrays import arrays  # slow to import

        _check_cells(len(self.run.committed), self.run.partitions)
        accepted = arrays(self.run).data_tree()["bookkeeping/accepted"].to_series().unstack().loc[1:]
        ax = ax or plot_axes(self.run.partitions)
        edges = {"edgecolors": "white", "linewidth": 0.8} if accepted.shape[0] <= NAMES else {}
        colours = {"cmap": ListedColormap(list(OUTCOMES.values())), "vmin": 0, "vmax": len(OUTCOMES) - 1}
        outcomes = (2 - accepted).fillna(0).set_axis(pd.Index(self.run.partition_names), axis=1)
        draw_map(outcomes, ax, None, **colours, **edges)
        ax.set(title=_shown(f"{self.run.name}: whose updates were accepted"), ylabel="partition")
        legend_aside(ax, [Patch(color=colour, label=result) for result, colour in OUTCOMES.items()])
        return ax

    def staleness(self, ax: Axes | None = None) -> Axes:
        """Draw how many updates of a parameter server had each staleness, by partition, with the refused ones.

        Args:
            ax: The axes to draw on; new ones where None.

        Returns:
            The axes.

        Raises:
            UsageError: The rounds of the run waited for all partitions.

        Example:
            >>> run.plot.staleness()
        """
        arrivals = came(self.run)
        if arrivals.empty:
            raise UsageError(f"{self.run.name} has no staleness: its rounds waited for all partitions")
        several = 1 < self.run.partitions <= LINES
        result = arrivals["accepted"].map({True: "accepted", False: "refused"})
        kind = arrivals["partition"].where(arrivals["accepted"], "refused") if several else result
        counts = arrivals.groupby(["staleness", kind.rename("kind")]).size().unstack(fill_value=0)
        counts = counts.reindex(range(counts.index.max() + 1), fill_value=0)
        ax = ax or plot_axes()
        below = 0 * counts.iloc[:, 0]
        for name in sorted(counts.columns, key=lambda name: (isinstance(name, str), name)):
            colour = OUTCOMES["refused"] if name == "refused" else None
            label = name if isinstance(name, str) else _shown(self.run.partition_names[name])
            ax.bar(counts.index, counts[name], bottom=below, label=label, color=colour)
            below = below + counts[name]
        ax.use_sticky_edges = False  # otherwise a bar of height 0 at the top would leave no margin above it
        ax.set_ylim(bottom=0)
        _whole_numbers(ax)
        ax.set(title=_shown(f"{self.run.name}: staleness of updates"), xlabel="staleness", ylabel="updates")
        legend_aside(ax, ax.get_legend_handles_labels()[0], "partition" if several else None)
        return ax


def plot_axes(rows: int = 0) -> Axes:
    """Axes of a new figure, which is high enough for `rows` rows with labels."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(7.2, 1.4 + min(max(0.22 * rows, 2.2), 10)), layout="constrained")
    return figure.subplots()


def split_axes(ax: Axes, count: int) -> list[Axes]:
    """Return the given axes and others below them, `count` in all, which share their place and their rounds."""
    sides = dict(zip(("left", "bottom", "right", "top"), ax.get_position().extents, strict=True))
    place = ax.get_subplotspec() or ax.figure.add_gridspec(1, 1, **sides)[0]
    grid = place.subgridspec(count, 1)
    ax.set_subplotspec(grid[0])
    return [ax, *(ax.figure.add_subplot(grid[row], sharex=ax) for row in range(1, count))]


def draw_columns(table: pd.DataFrame, columns: Iterable[Any], ax: Axes) -> list[Line2D]:
    """Draw columns of a table over its rounds as lines; columns without numbers are left out."""
    lines = []
    for column in filter(table.columns.__contains__, columns):
        if len(numbers := table[column].dropna()):
            lines += ax.plot(numbers.index, numbers, marker=".", label=_shown(column))
    ax.grid(alpha=0.3)
    _over_rounds(ax)
    return lines


def draw_map(table: pd.DataFrame, ax: Axes, label: str | None, **colours: Any) -> None:
    """Draw a table with a row for each round as a colour map over rounds, with a colour bar under `label`.

    Rounds may be missing. `colours` are further arguments of matplotlib's `pcolormesh`.
    """
    _over_rounds(ax)
    if table.empty:
        return
    _check_cells(table.index.max() - table.index.min() + 1, len(table.columns))
    whole = table.reindex(range(table.index.min(), table.index.max() + 1))
    rounds, rows = (np.arange(size + 1) - 0.5 for size in whole.shape)  # edges: of centres one alone has no size
    mesh = ax.pcolormesh(rounds + whole.index.min(), rows, whole.T.to_numpy(float), **colours)
    ax.invert_yaxis()
    if label:
        ax.figure.colorbar(mesh, ax=ax, label=label)
    name_rows(ax, whole.columns)


def name_rows(ax: Axes, names: pd.Index[Any], most: int = 10) -> None:
    """Label rows 0, 1, … of axes: about `NAMES` of them at most, or `most` where their names are these numbers."""
    from matplotlib.ticker import MaxNLocator

    if [*names] == [*range(len(names))]:
        ax.yaxis.set_major_locator(MaxNLocator(most, integer=True))
    else:
        every = -(-len(names) // NAMES)
        shown = [_shown(name, 30) for name in names[::every]]
        ax.set_yticks(range(0, len(names), every), shown, fontsize="small")


def legend_below(ax: Axes, handles: Sequence[Artist]) -> None:
    """Draw a legend below the axes, in as many columns as fit."""
    if handles:
        columns = max(1, 45 // (5 + max(len(str(handle.get_label())) for handle in handles)))
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 3.5}
        ax.legend(handles=handles, ncols=columns, columnspacing=1.2, frameon=False, **place)


def legend_aside(ax: Axes, handles: Sequence[Artist], title: str | None = None) -> None:
    """Draw a legend at the right of the axes."""
    if handles:
        ax.legend(handles=handles, title=title, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _check_cells(rounds: int, rows: int) -> None:
    """Raise `UsageError` for a colour map with more than `CELLS` cells."""
    if rounds * rows > CELLS:
        raise UsageError(f"a map of {rows:,} rows over {rounds:,} rounds is too large to be drawn")


def _shown(text: object, longest: int = 48) -> str:
    """Return a printable label, shortened inside if it is longer.

    Dollar signs, matplotlib's formulas, are escaped.
    """
    return short(text, longest).replace("$", r"\$")


def _over_rounds(ax: Axes) -> None:
    ax.set_xlabel("round")
    _whole_numbers(ax)


def _whole_numbers(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
