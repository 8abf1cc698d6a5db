"""What the command prints of plans."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.command.printing.console import console
from flows.planning.plan import Plan
from flows.planning.predicting import Prediction


def plan_summary(plan: Plan) -> dict[str, Any]:
    """What machines want to know of a plan."""
    return {
        "chosen": plan.chosen.strategy.name,
        "reason": plan.reason,
        "workers": plan.measured.workers,
        "config": plan.chosen.strategy.changes(plan.config),
        "strategies": {each.strategy.name: _row(each) for each in plan.predictions},
    }


def _row(prediction: Prediction) -> dict[str, Any]:
    refused = prediction.refused is not None
    numbers = {name: value for name, value in asdict(prediction).items() if name not in ("strategy", "refused")}
    return {name: None if refused else value for name, value in numbers.items()} | {"refused": prediction.refused}


def print_plan(plan: Plan, saved: Path | None) -> None:
    """The table, the choice with its reason, and what runs it."""
    out = console()
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    for head in ("an epoch", "a round", "range", "in maps", "stored", "sent", "memory"):
        table.add_column(head, justify="right")
    for each in sorted(plan.predictions, key=lambda prediction: prediction.epoch):
        chosen = each is plan.chosen
        table.add_row(*_cells(each), style="bold" if chosen else "dim" if each.refused else None)
    out.print(table)
    out.print(f"chosen: {plan.reason}", soft_wrap=True)
    if saved:
        out.print(f"`roundweave train {saved}` does it so", soft_wrap=True)


def _cells(each: Prediction) -> list[str]:
    if each.refused is not None:
        return [each.strategy.name, "–", each.refused]
    return [
        each.strategy.name,
        _time(each.epoch),
        _time(each.seconds),
        f"{_time(each.fastest)} to {_time(each.slowest)}",
        f"{each.maps:.0%}",
        _bytes(each.stored),
        _bytes(each.sent),
        _bytes(each.memory),
    ]


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"
