"""What `roundweave units` tells of a network."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.config.merge import Architecture
from flows.merging.subject import subject
from tasks.matching.check import check_function
from tasks.matching.units import find_units


def unit_report(config: Architecture) -> dict[str, Any]:
    """Groups, coverage, pinned tensors with reasons, and the function error; raises where it is too large."""
    found = subject(config)
    network = found.objective.model.build()
    began = time.perf_counter()
    units = find_units(network, found.inputs)
    seconds = time.perf_counter() - began
    return {
        "groups": {
            name: {
                "units": group.size,
                "depends_on": list(group.parents),
                "members": [
                    {"tensor": tensor, "axis": axis, "offset": offset}
                    for tensor, axis, offset in units.members(name)
                ],
            }
            for name, group in units.groups.items()
        },
        "coverage": units.coverage,
        "pinned": dict(units.pinned),
        "unknown": dict(units.unknown),
        "function_error": check_function(network, found.inputs, units),
        "seconds": seconds,
    }


def print_units(report: dict[str, Any]) -> None:
    """The same for people."""
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
