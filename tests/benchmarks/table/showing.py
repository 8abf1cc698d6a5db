"""The lines as a table on the terminal, as JSON, and as a picture."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from rich.table import Table

from tests.benchmarks.table.measuring import Line, Measured, Ours
from tests.benchmarks.table.rows.base import EXECUTORS

PACKAGES = ("torch", "distributed", "prefect", "zarr")


def table(lines: Sequence[Line]) -> Table:
    """Medians, and in brackets the median ratio of ours to the peer."""
    shown = Table(title="medians (ours / peer, median of the turns' ratios; below 1 ours is faster)")
    for head in ("row", "", "peer", "its median", *EXECUTORS, "target", "missing"):
        shown.add_column(head, justify="left" if head in ("row", "", "peer", "missing") else "right")
    before = None
    for line in lines:
        if line.row != before:
            shown.add_section()
        ours = (cell(line.ours.get(name)) for name in EXECUTORS)
        why = "; ".join(f"{name}: {reason}" for name, reason in line.missing.items())
        name = line.row if line.row != before else ""
        shown.add_row(name, line.reading, line.peer, number(line.median), *ours, f"{line.target:g}", why)
        before = line.row
    return shown


def cell(ours: Ours | None) -> str:
    """A median of ours, and in brackets the ratio to the peer's."""
    if ours is None:
        return "-"
    return number(ours.median) + (f" ({ours.ratio:.2f})" if ours.ratio else "")


def number(value: float | None) -> str:
    """With three digits, or a dash."""
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def write_json(measured: Sequence[Measured], lines: Sequence[Line], file: Path) -> None:
    """All readings of all turns, the lines, and where they were measured."""
    rows = [
        {"name": each.row.name, "title": each.row.title, "turns": each.turns, "missing": each.missing}
        for each in measured
    ]
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    machine |= {package: version(package) for package in PACKAGES}
    told = {"machine": machine, "rows": rows, "lines": [asdict(line) for line in lines]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
