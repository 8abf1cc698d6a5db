"""What the command prints of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.command.printing.console import console
from flows.planning.calibrating import Calibration
from flows.planning.plan import Plan
from flows.planning.predicting import Prediction

COLUMNS = ("an epoch", "a round", "range", "stored", "sent", "memory")
"""What is told of each strategy in numbers; bytes are those of a round, and of a process."""


def plan_summary(plan: Plan) -> dict[str, Any]:
    """What machines want to know of a plan."""
    return {
        "chosen": plan.chosen.strategy.name,
        "reason": plan.reason,
        "workers": plan.measured.workers,
        "config": plan.chosen.strategy.changes(plan.config, plan.work),
        "strategies": {each.strategy.name: _row(each) for each in plan.predictions},
        "measured": {
            "alone": {threads: asdict(pace) for threads, pace in plan.measured.alone.items()},
            "together": asdict(plan.measured.together),
            "task": plan.measured.task,
            "level": plan.measured.level,
        },
    }


def _row(prediction: Prediction) -> dict[str, Any]:
    if prediction.refused is not None:
        return {"refused": prediction.refused}
    numbers = {name: value for name, value in asdict(prediction).items() if name != "strategy"}
    return numbers | {"bound": prediction.bound}


def print_plan(plan: Plan, saved: Path | None) -> None:
    """The table, what was measured, the choice with its reason, and what runs it."""
    out = console()
    table = Table("strategy", box=None, pad_edge=False)
    for head in COLUMNS:
        table.add_column(head, justify="right")
    table.add_column("bound by")
    ordered = sorted(plan.predictions, key=lambda prediction: prediction.epoch)
    for each in ordered:
        if each.refused is None:
            table.add_row(*_cells(each), style="bold" if each is plan.chosen else None)
    out.print(table)
    for each in ordered:
        if each.refused is not None:
            out.print(f"not {each.strategy.name}: {each.refused}", style="dim", soft_wrap=True)
    out.print(_measured(plan.measured), soft_wrap=True)
    out.print(f"chosen: {plan.reason}", soft_wrap=True)
    told = str(saved) if saved else _flags(plan.chosen.strategy.changes(plan.config, plan.work))
    out.print(f"`roundweave train {told}` does it so", soft_wrap=True)


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


def _measured(measured: Calibration) -> str:
    alone, together = measured.alone[1], measured.together
    return (
        f"measured with {measured.workers} workers: a step {shown_time(together.step)} with all at work, "
        f"{shown_time(alone.step)} alone; a task {shown_time(measured.task)} of many, "
        f"{shown_time(measured.level)} one after another; "
        f"reduced {1e-9 / together.reduce:.2g} GB/s, stored {1e-9 / together.store:.2g} GB/s"
    )


def _cells(each: Prediction) -> list[str]:
    return [
        each.strategy.name,
        shown_time(each.epoch),
        shown_time(each.seconds),
        shown_range(each.fastest, each.slowest),
        *map(shown_bytes, (each.stored, each.sent, each.memory)),
        f"{each.bound} ({each.parts[each.bound] / each.seconds:.0%})",
    ]


def shown_time(seconds: float) -> str:
    """Seconds, or thousandths of one."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def shown_range(fastest: float, slowest: float) -> str:
    """From one time to the other, or the one that both are."""
    both = (shown_time(fastest), shown_time(slowest))
    return " to ".join(dict.fromkeys(both))


def shown_bytes(count: float) -> str:
    """Gigabytes, megabytes, or thousands of bytes where there are few."""
    if count >= 1e9:
        return f"{count / 1e9:.3g} GB"
    return f"{count / 1e3:.3g} kB" if 0 < count < 1e5 else f"{count / 1e6:.3g} MB"
