"""What the command prints of merges and of interchangeable units."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from flows.command.printing.console import console
from flows.merging.result import MergeResult
from storage.rounds.commits import Score


def print_merge(result: MergeResult) -> None:
    """The table, and where everything is."""
    out = console()
    if result.scores:
        table = Table("network", "loss", "accuracy", "barrier", box=None, pad_edge=False)
        for name, score in result.scores.items():
            rise = result.barriers.get(name)
            table.add_row(name, *_numbers(score), "" if rise is None else f"{rise:.4f}")
        out.print(table)
    else:
        out.print("no data were given, so nothing is scored")
    moved = ", ".join(f"{share:.0%}" for share in result.moved[1:])
    free = f"{result.free_units:,} of {result.free_units + result.pinned_units:,} units are free"
    out.print(f"units moved: {moved}; {result.coverage:.0%} of the tensors can be permuted, {free}")
    out.print(f"function error {result.function_error:.1e} (float64, relative)")
    if len(set(result.coefficients)) > 1:
        out.print("coefficients: " + ", ".join(f"{c:.3g}" for c in result.coefficients))
    for what, place in (("merged network", result.out), ("plot", result.plot)):
        if place:
            out.print(f"{what}: {place}", soft_wrap=True)
    if result.run:
        out.print(f"kept with its permutations as run {result.run.name}, in {result.run.address}", soft_wrap=True)


def _numbers(score: Score) -> tuple[str, str]:
    """Loss and accuracy as text."""
    return f"{score.loss:.4f}", "–" if score.accuracy is None else f"{score.accuracy:.2%}"


def print_units(report: dict[str, Any]) -> None:
    """The report of `units` for people."""
    out = console()
    table = Table("group", "units", "within each of", "tensors", box=None, pad_edge=False)
    for name, group in report["groups"].items():
        tensors = list(dict.fromkeys(f"{m['tensor']}[{m['axis']}]" for m in group["members"]))
        shown = ", ".join(tensors[:4]) + (f" and {len(tensors) - 4} more" if len(tensors) > 4 else "")
        table.add_row(name, str(group["units"]), ", ".join(group["depends_on"]) or "–", shown)
    out.print(table if report["groups"] else "no interchangeable units")
    if report["pinned"]:
        pinned = Table("pinned tensor", "why", box=None, pad_edge=False)
        for name, why in report["pinned"].items():
            pinned.add_row(name, why)
        out.print(pinned)
    for operation, place in report["unknown"].items():
        out.print(f"operation {operation} is not understood; it stands at {place}", style="yellow")
    counts = Table("units", "", box=None, pad_edge=False)
    counts.add_row(f"{report['free_units']:,}", "free")
    for why, count in report["pinned_units"].items():
        counts.add_row(f"{count:,}", f"pinned: {why}")
    out.print(counts)
    out.print(
        f"{report['coverage']:.0%} of the tensors can be permuted; function error {report['function_error']:.1e} "
        f"(float64, relative); {report['seconds']:.2f} s"
    )
