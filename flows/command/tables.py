"""What the command prints of runs: tables for people, objects for machines."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.config.resolving import short_name
from storage.runs.run import Run

SHOWN_ROUNDS = 12
"""Rounds of a longer history that `show` prints: the first ones and the last ones."""


def run_summary(run: Run) -> dict[str, Any]:
    """What machines want to know of a run; loss and accuracy are the last scored ones or None."""
    history = run.history()
    scored = history.dropna(subset=["loss"])
    return {
        "run": run.name,
        "path": str(run.path),
        "status": run.status,
        "rounds": run.done,
        "of_rounds": run.rounds,
        "digest": run.digest,
        "loss": _last(scored["loss"]),
        "accuracy": _last(scored.get("accuracy", ())),
        "refused": int(run.partitions * run.done - history["accepted"].sum()),
        "stop": run.stop,
        "failure": run.failure,
    }


def _last(column: Any) -> float | None:
    return None if not len(column) or math.isnan(column.iloc[-1]) else float(column.iloc[-1])


def print_result(run: Run, seconds: dict[str, Any]) -> None:
    """One run that has just been trained."""
    summary = run_summary(run)
    console = Console(highlight=False)
    score = f"loss {summary['loss']:.4f}" if summary["loss"] is not None else "not scored"
    score += f", accuracy {summary['accuracy']:.2%}" if summary["accuracy"] is not None else ""
    console.print(f"[bold]{run.name}[/bold]: {summary['status']}, {run.done} rounds, {score}")
    if run.stop:
        console.print(f"stopped early: {run.stop}")
    if seconds["seconds_per_round"] is not None:
        console.print(
            f"first round after {seconds['first_round_seconds']:.1f} s, then {seconds['seconds_per_round']:.3f} s "
            f"a round; {seconds['seconds']:.1f} s in all"
        )
    if run.damaged:
        console.print(f"[yellow]rounds {run.damaged} were found damaged and done again")
    _print_unscored(run, console)
    if summary["refused"]:
        console.print(
            f"[yellow]{summary['refused']} updates were refused; `roundweave show {run.name}` names them"
        )
    console.print(f"stored in {run.path}, digest {summary['digest'][:16]}")


def _print_unscored(run: Run, console: Console) -> None:
    """Say so where the last score leaves out held-out examples, because their loss is no number."""
    score, held_out = run.round(-1).score, run.attributes["data"]["held_out"]
    if score and score.examples < held_out:
        left_out = held_out - score.examples
        console.print(
            f"[yellow]{left_out} of {held_out} held-out examples were not scored: a loss there is no number"
        )


def print_run(run: Run) -> None:
    """What a run is, and its history."""
    console = Console(highlight=False)
    console.print(repr(run), markup=False, soft_wrap=True)
    config = run.config
    facts = {
        "algorithm": run.attributes["algorithm"],
        "data": f"{_named(config['data'])}, {run.attributes['data']['examples']} examples to train on, "
        f"{run.attributes['data']['held_out']} held out",
        "model": f"{_named(config['model'])} {config['model_options'] or ''}",
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.created)),
        "stored in": run.path,
        "digest": run.digest,
    }
    damaged = f"rounds {run.damaged} were found damaged and done again" if run.damaged else None
    for name, value in {**facts, "stopped": run.stop, "failed": run.failure, "damaged": damaged}.items():
        if value is not None:
            console.print(f"[bold]{name:10}[/bold]", value, markup=True, soft_wrap=True)
    console.print(_history_table(run))
    _print_unscored(run, console)
    for number in range(1, run.done + 1):
        for partition, reason in run.round(number).refused.items():
            console.print(f"[yellow]round {number} refused partition {partition}:[/yellow] {reason}")


def _named(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else str(value["reference"])


def _history_table(run: Run) -> Table:
    history = run.history()
    rows = list(history.iterrows())
    if len(rows) > SHOWN_ROUNDS:
        rows = [*rows[:3], *rows[3 - SHOWN_ROUNDS :]]
    table = Table("round", "loss", "accuracy", "train loss", "updates", "seconds", box=None, pad_edge=False)
    before = -1
    for number, row in rows:
        if int(str(number)) != before + 1:
            table.add_row("…")
        before = int(str(number))
        table.add_row(
            str(number),
            _number(row["loss"], ".4f"),
            _number(row.get("accuracy", math.nan), ".2%"),
            _number(row.get("train_loss", math.nan), ".4f"),
            f"{int(row['accepted'])}",
            _number(row["seconds"], ".3f"),
        )
    return table


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def print_runs(runs: list[Run]) -> None:
    """A line for each run."""
    if not runs:
        Console().print("no runs here; `roundweave train` makes one")
        return
    table = Table("run", "status", "rounds", "algorithm", "data", "loss", "accuracy", box=None, pad_edge=False)
    for run in runs:
        summary = run_summary(run)
        table.add_row(
            run.name,
            run.status,
            f"{run.done}/{run.rounds}",
            run.algorithm,
            short_name(_named(run.config["data"])),
            _number(summary["loss"] if summary["loss"] is not None else math.nan, ".4f"),
            _number(summary["accuracy"] if summary["accuracy"] is not None else math.nan, ".2%"),
        )
    Console(highlight=False).print(table)
