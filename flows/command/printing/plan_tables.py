"""What the command prints of plans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.command.printing.console import console
from flows.config.train import Raced
from flows.planning.plan import Plan

COLUMNS = ("loss", "accuracy", "trained", "rounds", "a round", "an epoch")
"""What is told of each strategy in numbers."""


def plan_summary(plan: Plan) -> dict[str, Any]:
    """What machines want to know of a plan."""
    raced = {name: row.model_dump() for name, row in plan.raced.items()}
    return {
        "chosen": plan.chosen.name,
        "reason": plan.reason,
        "workers": plan.workers,
        "config": plan.chosen.changes(plan.config, plan.work),
        "strategies": raced | {name: {"refused": why} for name, why in plan.refused.items()},
    }


def print_plan(plan: Plan, saved: Path | None) -> None:
    """The table, the choice with its reason, and what runs it."""
    out = console()
    table = Table("strategy", box=None, pad_edge=False)
    for head in COLUMNS:
        table.add_column(head, justify="right")
    for name, row in plan.raced.items():
        table.add_row(name, *_cells(row), style="bold" if name == plan.chosen.name else None)
    out.print(table)
    for name, why in plan.refused.items():
        out.print(f"not {name}: {why}", style="dim", soft_wrap=True)
    out.print(f"chosen: {plan.reason}", soft_wrap=True)
    told = str(saved) if saved else _flags(plan.chosen.changes(plan.config, plan.work))
    out.print(f"`roundweave train {told}` does it so", soft_wrap=True)


def _cells(row: Raced) -> list[str]:
    accuracy = "" if row.accuracy is None else f"{row.accuracy:.1%}"
    trained, seconds, epoch = map(shown_time, (row.trained, row.seconds, row.epoch))
    return [f"{row.loss:.3g}", accuracy, trained, f"{row.rounds:.3g}", seconds, epoch]


def _flags(changes: Mapping[str, Any]) -> str:
    """The options of training that make these changes."""
    algorithm = {"algorithm": changes["algorithm"]["name"], **changes["algorithm"]}
    values = {**changes, **algorithm, "quorum": None, "name": None}
    switches = {True: "--{}", False: "--no-{}"}
    told = [
        (switches[value] if isinstance(value, bool) else "--{} {}").format(name.replace("_", "-"), value)
        for name, value in values.items()
        if value is not None
    ]
    return " ".join(told)


def shown_time(seconds: float) -> str:
    """Seconds, or thousandths of one."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
