"""What the command prints of runs: tables for people, objects for machines."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.config.resolving import short_name
from flows.reporting.scores import shown
from storage.runs.run import Run

SHOWN_ROUNDS = 12
"""Rounds of a longer history that `show` prints: the first ones and the last ones."""


def run_summary(run: Run) -> dict[str, Any]:
    """What machines want to know of a run; loss and scores are the last ones there are, or None."""
    history = run.history()
    scored = history.dropna(subset=["loss"])
    scores = {name: _last(scored[name]) for name in run.scores}
    return {
        "run": run.name,
        "path": str(run.path),
        "status": run.status,
        "rounds": run.done,
        "of_rounds": run.rounds,
        "digest": run.digest,
        "loss": _last(scored["loss"]),
        "accuracy": scores.get("accuracy"),
        "scores": scores,
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
    scores = {
        name: value for name, value in {"loss": summary["loss"], **summary["scores"]}.items() if value is not None
    }
    said = ", ".join(f"{name} {shown(name, value)}" for name, value in scores.items()) or "not scored"
    console.print(f"[bold]{run.name}[/bold]: {summary['status']}, {run.done} rounds, {said}")
    if seconds["seconds_per_round"] is not None:
        console.print(
            f"first round after {seconds['first_round_seconds']:.1f} s, then {seconds['seconds_per_round']:.3f} s "
            f"a round; {seconds['seconds']:.1f} s in all"
        )
    for remark in _remarks(run):
        console.print(remark, style="yellow", markup=False)
    if summary["refused"]:
        refused = f"{summary['refused']} updates were refused; `roundweave show {run.name}` names them"
        console.print(refused, style="yellow", markup=False)
    console.print(f"stored in {run.path}, digest {summary['digest'][:16]}")


def _remarks(run: Run) -> list[str]:
    """What is worth a line: an early end, rounds done again, examples that were not scored."""
    remarks = [f"stopped early: {run.stop}"] if run.stop else []
    if run.damaged:
        remarks.append(f"rounds {run.damaged} were found damaged and done again")
    score, held_out = run.round(-1).score, run.attributes["data"]["held_out"]
    if score and score.examples < held_out:
        left_out = held_out - score.examples
        remarks.append(f"{left_out} of {held_out} held-out examples were not scored: a loss there is no number")
    return remarks


def print_run(run: Run) -> None:
    """What a run is, and its history."""
    console = Console(highlight=False)
    console.print(repr(run), markup=False, soft_wrap=True)
    for name, value in _facts(run).items():
        console.print(f"[bold]{name:10}[/bold]", end=" ")
        console.print(value, markup=False, soft_wrap=True)
    console.print(_history_table(run))
    for remark in _remarks(run):
        console.print(remark, style="yellow", markup=False)
    for number in range(1, run.done + 1):
        for partition, reason in run.round(number).refused.items():
            console.print(f"round {number} refused partition {partition}: {reason}", style="yellow", markup=False)


def _facts(run: Run) -> dict[str, str]:
    config, data = run.config, run.attributes["data"]
    facts = {
        "algorithm": run.attributes["algorithm"],
        "data": f"{_named(config['data'])}, {data['examples']} examples to train on, {data['held_out']} held out",
        "model": f"{_named(config['model'])} {config['model_options'] or ''}",
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.created)),
        "stored in": str(run.path),
        "digest": run.digest,
    }
    return facts | ({"failed": run.failure} if run.failure else {})


def _named(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_named, value))
    return value if isinstance(value, str) else str(value["reference"])


def _history_table(run: Run) -> Table:
    history = run.history()
    rows = list(history.iterrows())
    if len(rows) > SHOWN_ROUNDS:
        rows = [*rows[:3], *rows[3 - SHOWN_ROUNDS :]]
    scores = ["loss", *run.scores]
    table = Table("round", *scores, "train_loss", "updates", "seconds", box=None, pad_edge=False)
    before = -1
    for number, row in rows:
        if int(str(number)) != before + 1:
            table.add_row("…")
        before = int(str(number))
        numbers = [shown(name, row.get(name, math.nan)) for name in (*scores, "train_loss")]
        table.add_row(str(number), *numbers, f"{int(row['accepted'])}", f"{row['seconds']:.3f}")
    return table


def print_runs(runs: list[Run]) -> None:
    """A line for each run."""
    if not runs:
        Console().print("no runs here; `roundweave train` makes one")
        return
    longest = max(len(run.name) for run in runs)  # a name is there to be copied
    table = Table(box=None, pad_edge=False)
    for column in ("run", "status", "rounds", "algorithm", "data", "loss", "scores"):
        table.add_column(column, no_wrap=column == "run", min_width=None if column != "run" else longest)
    for run in runs:
        summary = run_summary(run)
        scores = ", ".join(f"{name} {shown(name, value)}" for name, value in summary["scores"].items())
        data = short_name(_named(run.config["data"]))
        rounds = f"{run.done}/{run.rounds}"
        table.add_row(run.name, run.status, rounds, run.algorithm, data, shown("loss", summary["loss"]), scores)
    Console(highlight=False).print(table)
