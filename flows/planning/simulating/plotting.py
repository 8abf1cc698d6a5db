"""What was simulated as a figure."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from flows.planning.simulating.curves import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = {"graph": "-", "gang": "--"}
"""How those of an executor are drawn; others are dotted."""

PANELS = {"seconds": "seconds a round", "efficiency": "efficiency"}


def figure(curves: Curves) -> Figure:
    """Seconds a round and efficiency by the number of workers, a line for each schedule."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(11, 4.8), layout="constrained")
    panels = drawn.subplots(1, len(PANELS))
    # A scale of no numbers cannot be logarithmic.
    scales = {"xscale": "log", "yscale": "log"} if any(isfinite(point.seconds) for point in curves.points) else {}
    for axes, (quantity, label) in zip(panels, PANELS.items(), strict=True):
        _draw(axes, curves, quantity)
        axes.set(title=label, xlabel="workers", **scales)
        axes.grid(alpha=0.3, which="both")
    panels[1].axhline(1, color="grey", linewidth=0.8)
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    drawn.suptitle(f"simulated: {_title(curves)}", fontsize="medium")
    return drawn


def _draw(axes: Axes, curves: Curves, quantity: str) -> None:
    colours: dict[str, str] = {}
    for name in curves.schedules:
        kind, _, executor = name.partition(", ")
        colour = colours.setdefault(kind, f"C{len(colours)}")
        points = [point for point in curves.of(name) if isfinite(point.seconds)]
        workers = [point.workers for point in points]
        values = [getattr(point, quantity) for point in points]
        axes.plot(workers, values, LINES.get(executor, ":"), color=colour, marker=".", label=name)
        if quantity == "seconds":
            low, high = [point.fastest for point in points], [point.slowest for point in points]
            axes.fill_between(workers, low, high, color=colour, alpha=0.08)


def _title(curves: Curves) -> str:
    """The work in a line, and what of the cluster was given."""
    costs = next(iter(curves.costs.values()))
    given = ", ".join(
        f"{name} {value:g}"
        for name, value in curves.cluster.model_dump(exclude_unset=True).items()
        if value is not None
    )
    work = f"states of {costs.state / 1e6:.3g} MB, steps of {1e3 * costs.step:.3g} ms"
    return f"{work}; {given}" if given else work


def draw(curves: Curves, place: Path) -> None:
    """Write the figure."""
    figure(curves).savefig(place, dpi=120)
