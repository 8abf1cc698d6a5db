"""What the command prints of runs for people."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.table import Table

from flows.command.printing.console import console
from flows.command.printing.summaries import run_summary, seconds_per_round, summary_or_damage
from flows.config.train import Planned
from flows.reporting.scores import shown
from storage.errors import StoreError, listed, spans
from storage.places.addresses import full_address
from storage.rounds.commits import ProcessGroupRecord
from storage.runs.run import Run
from storage.runs.tables import arrivals_by
from tasks.user_code import short_name

if TYPE_CHECKING:
    import pandas as pd

SHOWN_ROUNDS = 12
"""Rounds of a longer history that `show` prints: the first ones and the last ones, of those that were scored."""

SHOWN_REFUSALS = 24
"""Refused updates that `show` names."""

SHOWN_SPANS = 12
"""So many stretches of rounds are named."""

SHOWN_CLASSES = 12
"""So many labels are shown with their names."""


def print_result(run: Run, seconds: dict[str, Any]) -> None:
    """One run that has just been trained."""
    summary = run_summary(run)
    out = console()
    scores = {
        name: value for name, value in {"loss": summary["loss"], **summary["scores"]}.items() if value is not None
    }
    said = ", ".join(f"{name} {shown(name, value)}" for name, value in scores.items()) or "not scored"
    out.print(run.name, style="bold", end="")
    out.print(f": {summary['status']}, {run.done} rounds, {said}")
    if seconds["first_round_seconds"] is not None and summary["seconds_per_round"] is not None:
        out.print(
            f"first round after {seconds['first_round_seconds']:.1f} s, then {summary['seconds_per_round']:.3f} s "
            f"a round; {seconds['seconds']:.1f} s in all"
        )
    for remark in _remarks(run):
        out.print(remark, style="yellow")
    if summary["refused"]:
        count = summary["refused"]
        were, them = ("update was", "it") if count == 1 else ("updates were", "them")
        refused = f"{count} {were} refused; `roundweave show {run.name}` names {them}"
        out.print(refused, style="yellow")
    out.print(f"stored in {summary['path']}, digest {summary['digest'][:16]}; all of it is synced", soft_wrap=True)


def _remarks(run: Run) -> list[str]:
    """What is worth a line: an early end, rounds lost or done again, examples that were not scored."""
    remarks = [f"stopped early: {run.stop}"] if run.stop else []
    if lost := [number for number in run.lost if number < run.done]:
        remarks.append(f"lost: round {listed(lost)}, of which no whole record is there; the later ones are whole")
    if after := [number for number in run.lost if number > run.done]:
        remarks.append(f"damaged: round {listed(after)}; `roundweave resume {run.name}` does it again")
    if run.damaged:
        remarks.append(f"found damaged and done again: round {listed(run.damaged)}")
    if run.absent.rounds:
        remarks.append(f"kept: the states of {_kept(run.kept)}, {_sent(run)}")
    score, held_out = run.round(-1).score, run.attributes["data"]["held_out"]
    if score and score.examples < held_out:
        left_out = held_out - score.examples
        remarks.append(f"{left_out} of {held_out} held-out examples were not scored: a loss there is no number")
    return remarks


def _kept(rounds: Sequence[int]) -> str:
    """Which rounds; of many that are no neighbours, how many and how far apart they are at most."""
    if len(spans(rounds)) <= SHOWN_SPANS:
        return f"rounds {listed(rounds)}"
    apart = max(later - earlier for earlier, later in pairwise(rounds))
    return f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}, at most {apart} apart"


def _sent(run: Run) -> str:
    """Of which rounds of a run that keeps less there are updates."""
    rounds = [number for number in run.committed if number and run.pruned.has_update(number)]
    carried = [number for number, _ in run.pruned.carried]
    more = f"; of rounds {listed(carried)} those that partitions carry from" if carried else ""
    return f"and the updates of rounds {listed(rounds)}{more}" if rounds else f"and of no round all updates{more}"


def print_run(run: Run) -> None:
    """What a run is, and its history."""
    out, history = console(), run.history()
    out.print(repr(run), soft_wrap=True)
    for name, value in _facts(run, history).items():
        out.print(f"{name:10}", style="bold", end=" ")
        out.print(value, soft_wrap=True)
    out.print(_history_table(run, history))
    arrivals = run.arrivals()
    if not arrivals.empty:
        out.print(_arrivals_table(arrivals))
    for remark in _remarks(run):
        out.print(remark, style="yellow")
    for line in _refusals(run):
        out.print(line, style="yellow")


def _refusals(run: Run) -> list[str]:
    """A line for each of the first refused updates, and how many more there are."""
    refused = [(n, p, why) for n in run.committed for p, why in run.round(n).refused.items()]
    lines = [f"round {n} refused partition {p}: {why}" for n, p, why in refused[:SHOWN_REFUSALS]]
    if more := len(refused) - len(lines):
        lines.append(f"and {more} more; `roundweave report {run.name} --out PAGE.html` has them all")
    return lines


def _facts(run: Run, history: pd.DataFrame) -> dict[str, str]:
    config, data = run.config, run.attributes["data"]
    examples = f"{data['examples']} examples to train on, {data['held_out']} held out"
    facts = {
        "algorithm": run.attributes["algorithm"],
        "data": f"{_reference(config['data'])}, {examples}",
        "split": _split(config),
        "classes": _classes(data.get("class_names", ())),
        "model": f"{_reference(config['model'])} {config['model_options'] or ''}",
        "parent": _parent(run.attributes.get("parent")),
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.created)),
        "a round": ""
        if (mean := seconds_per_round(history)) is None
        else f"{mean:.3f} s, the mean of all but the first",
        "run by": run.round(-1).commit.executor,
        "ranks": _process_group(run.round(-1).commit.process_group),
        "stored in": full_address(run.address),
        "digest": run.digest,
        "planned": _planned(run),
    }
    facts |= {"failed": run.failure or ""}
    return {name: fact for name, fact in facts.items() if fact}


def _planned(run: Run) -> str:
    """The strategy, and what a round of it took in the race; nothing where none was chosen."""
    if not run.config.get("planned"):
        return ""
    planned = Planned(**run.config["planned"])
    raced = planned.raced.get(planned.strategy)
    took = f", {raced.seconds:.3g} s a round in the race" if raced else ""
    return f"{planned.strategy}, of {planned.workers} workers{took}"


def _process_group(group: ProcessGroupRecord | None) -> str:
    """What the last round took of its ranks; empty where no process group ran it."""
    if group is None:
        return ""
    team = f", {group.team} to a network" if group.team > 1 else ""
    sent = ", ".join(f"{kind} {size / 1e6:.3g} MB" for kind, size in group.exchanged.items() if size)
    memory = f"at most {max(group.memory) / 1e6:.0f} MB a rank"
    return "; ".join(filter(None, (f"{group.ranks} ranks{team}", sent and f"a round exchanges {sent}", memory)))


def _split(config: Mapping[str, Any]) -> str:
    """How examples were dealt; nothing for a merge, which deals none."""
    every = config.get("resplit_every")
    return f"{config['split']}{f', a new one every {every} rounds' if every else ''}" if "split" in config else ""


def _parent(parent: Mapping[str, Any] | None) -> str:
    """The round that a run came from, the chain of its record, and what was changed there."""
    if parent is None:
        return ""
    changed = ", ".join(f"{name} {value}" for name, value in parent.get("changed", {}).items())
    again = f", reduced again: {changed or 'as it was'}" if "changed" in parent else ""
    return f"{parent['run']}@{parent['round']}{again}, chain {parent['chain']}"


def _classes(names: Sequence[str]) -> str:
    """What the first labels mean."""
    shown = ", ".join(f"{label} {name}" for label, name in enumerate(names[:SHOWN_CLASSES]))
    return shown + (f" and {len(names) - SHOWN_CLASSES} more" if len(names) > SHOWN_CLASSES else "")


def _reference(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_reference, value))
    return value if isinstance(value, str) else str(value["reference"])


def _history_table(run: Run, history: pd.DataFrame) -> Table:
    rows = list(history.iterrows())
    if len(rows) > SHOWN_ROUNDS:
        rows = list(history.dropna(subset=["loss"]).iterrows()) or rows
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


def _arrivals_table(arrivals: pd.DataFrame) -> Table:
    """What each worker pushed to a parameter server, and how stale it was."""
    columns = ("worker", "partitions", "updates", "share", "staleness", "largest", "refused")
    table = Table(*columns, box=None, pad_edge=False)
    for worker, row in arrivals_by(arrivals, "worker").iterrows():
        numbers = f"{row['share']:.1%}", f"{row['staleness']:.2f}", str(row["largest"]), str(row["refused"])
        table.add_row(str(worker), listed(row["partitions"]), str(row["updates"]), *numbers)
    return table


def print_runs(runs: Mapping[str, Run | StoreError]) -> None:
    """A line for each run, and for each that is damaged why."""
    out = console()
    if not runs:
        out.print("no runs here; `roundweave train` makes one")
        return
    longest = max(map(len, runs))  # a name is there to be copied
    table = Table(box=None, pad_edge=False)
    for column in ("run", "status", "rounds", "algorithm", "data", "loss", "scores"):
        table.add_column(column, no_wrap=column == "run", min_width=None if column != "run" else longest)
    damaged = []
    for name, run in runs.items():
        summary = summary_or_damage(name, run)
        if summary["status"] == "damaged":
            damaged.append(f"{name} is damaged: {summary['failure']}")
        elif isinstance(run, Run):
            table.add_row(name, *_row(run, summary))
    out.print(table)
    for line in damaged:
        out.print(line, style="yellow", soft_wrap=True)


def _row(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """What the list tells of a run besides its name."""
    scores = ", ".join(f"{name} {shown(name, value)}" for name, value in summary["scores"].items())
    data = short_name(_reference(run.config["data"]))
    return [run.status, f"{run.done}/{run.rounds}", run.algorithm, data, shown("loss", summary["loss"]), scores]
