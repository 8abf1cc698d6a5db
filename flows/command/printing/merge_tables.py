"""What the command prints of merges and of interchangeable units."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from flows.merging.result import MergeResult


def print_merge(result: MergeResult) -> None:
    """The table, and where everything is."""
    console = Console(highlight=False, markup=False)
    if result.scores:
        table = Table("network", "loss", "accuracy", "barrier", box=None, pad_edge=False)
        for name, score in result.scores.items():
            accuracy = "–" if score.accuracy is None else f"{score.accuracy:.2%}"
            rise = result.barriers.get(name)
            table.add_row(name, f"{score.loss:.4f}", accuracy, "" if rise is None else f"{rise:.4f}")
        console.print(table)
    else:
        console.print("no data were given, so nothing is scored")
    moved = ", ".join(f"{share:.0%}" for share in result.moved[1:])
    console.print(f"units moved: {moved}; {result.coverage:.0%} of the tensors can be permuted")
    console.print(f"function error {result.function_error:.1e} (float64, relative)")
    if result.cycle_error is not None:
        console.print(
            f"cycle error of pair by pair matches: {result.cycle_error:.1%}; the order used here has none"
        )
    if len(set(result.coefficients)) > 1:
        console.print("coefficients: " + ", ".join(f"{c:.3g}" for c in result.coefficients))
    for what, place in (("merged network", result.out), ("plot", result.plot)):
        if place:
            console.print(f"{what}: {place}", soft_wrap=True)
    if result.rounds:
        console.print(f"went on as run {result.rounds.name}, in {result.rounds.path}", soft_wrap=True)
    if result.run:
        console.print(f"kept with its permutations as run {result.run.name}, in {result.run.path}", soft_wrap=True)


def print_units(report: dict[str, Any]) -> None:
    """The report of `units` for people."""
    console = Console(highlight=False, markup=False)
    table = Table("group", "units", "within each of", "tensors", box=None, pad_edge=False)
    for name, group in report["groups"].items():
        tensors = list(dict.fromkeys(f"{m['tensor']}[{m['axis']}]" for m in group["members"]))
        shown = ", ".join(tensors[:4]) + (f" and {len(tensors) - 4} more" if len(tensors) > 4 else "")
        table.add_row(name, str(group["units"]), ", ".join(group["depends_on"]) or "–", shown)
    console.print(table if report["groups"] else "no interchangeable units")
    if report["pinned"]:
        pinned = Table("pinned tensor", "why", box=None, pad_edge=False)
        for name, why in report["pinned"].items():
            pinned.add_row(name, why)
        console.print(pinned)
    for operation, place in report["unknown"].items():
        console.print(f"operation {operation} is not understood; it stands at {place}", style="yellow")
    console.print(
        f"{report['coverage']:.0%} of the tensors can be permuted; function error {report['function_error']:.1e} "
        f"(float64, relative); {report['seconds']:.2f} s"
    )
