"""`roundweave show` and `roundweave runs`: print what runs are and how they went, as text or JSON."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from roundweave.flows.config.algorithms import option_fields
from roundweave.flows.config.plugins import plugin_classes
from roundweave.flows.reporting.listening import finite, shown
from roundweave.flows.terminal.common import Json, Root, RunName, TextTable, console, output, print_json, say
from roundweave.storage.errors import StoreError, UsageError, cut, listed, nearest
from roundweave.storage.places.base import above, full_address
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.commits import Commit, ProcessGroupRecord
from roundweave.storage.runs.listing import flat_config, looked_through, stored_bytes
from roundweave.storage.runs.measures import by_worker
from roundweave.storage.runs.names import default_root, recorded_plugins
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.tasks.algorithms.table import ABOUT
from roundweave.tasks.own_code.code import short_name

if TYPE_CHECKING:
    import pandas as pd

SHOWN_ROUNDS = 12
"""The most rounds that `show` prints; of a longer history it prints the first and last scored ones."""

COLUMNS = {name: name for name in ("run", "status", "rounds", "loss", "accuracy")} | {
    "seconds": "seconds_of_rounds",
    "size": "bytes",
    **{name: name for name in ("began", "parent", "algorithm", "data")},
}
"""The columns of a list of runs, by which it can be sorted, and the members of a run's summary that they show."""

HALF_YEAR = 183 * 86_400

SHOWN_REFUSALS = 24
"""The most refused updates that `show` names."""


def show_command(run: RunName, root: Root = None, as_json: Json = False) -> None:
    """Show a run: configuration, rounds, scores and events."""
    stored = open_stored(run, root)
    if not as_json:
        _print_run(stored)
        return
    summary = run_summary(stored)
    for plugin in plugin_classes():
        summary |= plugin.summary(stored, summary)
    if arrivals := by_worker(stored):
        summary["arrivals"] = arrivals
    print_json(summary)


def runs_command(
    folder: Annotated[str | None, typer.Argument(help="the same as --root", metavar="ROOT")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="show only the last N runs")] = None,
    match: Annotated[str, typer.Option(help="show only names that match, such as 'nightly-*'")] = "*",
    sort: Annotated[
        str, typer.Option(help=f"column: {', '.join(COLUMNS)}; a minus sign in front sorts in descending order")
    ] = "began",
    root: Root = None,
    as_json: Json = False,
) -> None:
    """List the runs under a root."""
    if folder and root:
        raise UsageError(f"give one root, {folder} or --root {root}")
    column = sort.removeprefix("-")
    if column not in COLUMNS:
        hint = nearest(column, COLUMNS, f"there are {', '.join(COLUMNS)}")
        raise UsageError(f"no column {column!r}; {hint}")
    stored = looked_through(folder or root, match, last)
    summaries = [summary_or_damage(name, run) for name, run in stored.items()]
    have = [run for run in summaries if run.get(COLUMNS[column]) is not None]
    lack = [run for run in summaries if run.get(COLUMNS[column]) is None]
    have.sort(key=lambda run: run[COLUMNS[column]], reverse=sort != column)
    output(as_json, have + lack, _print_runs, have + lack)


def run_summary(run: StoredRun) -> dict[str, Any]:
    """A run's summary for JSON; loss and scores are those of the last scored round, or None."""
    totals = run.totals
    numbers = finite({name: totals.last.get(name) for name in ("loss", *run.scores)})
    scores = {name: numbers[name] for name in run.scores}
    return {
        "run": run.name,
        "path": full_address(run.address),
        "status": run.status,
        "rounds": run.done,
        "of_rounds": run.rounds,
        "algorithm": run.algorithm,
        "data": _reference(run.config["data"]),
        "digest": run.digest,
        "parent": run.parent,
        "began": run.created,
        "data_digest": run.attributes["data"]["digest"],
        "loss": numbers["loss"],
        "accuracy": scores.get("accuracy"),
        "scores": scores,
        "seconds_per_round": _mean_seconds(totals.seconds),
        "seconds_of_rounds": sum(totals.seconds.values()),
        "refused": totals.refused,
        "stop": run.stop,
        "failure": run.failure,
        "judgement": run.judgement and {"accepted": run.judgement.accepted, "reasons": run.judgement.reasons},
    }


def _mean_seconds(seconds: Mapping[int, float]) -> float | None:
    """The mean seconds of all rounds but the first, which is slower; None if there is only one round."""
    later = [each for number, each in seconds.items() if number > 1]
    return fmean(later) if later else None


def summary_or_damage(name: str, run: StoredRun | StoreError) -> dict[str, Any]:
    """The summary of a run; of a damaged one its name and the reason why it cannot be read."""
    try:
        if isinstance(run, StoredRun):
            return run_summary(run) | {"bytes": stored_bytes(place_of(run.address))}
        raise run
    except StoreError as error:
        return {"run": name, "status": error.status, "failure": str(error)}


def _print_runs(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the runs, then a line for each that cannot be opened, which says why."""
    opened = [summary for summary in summaries if "rounds" in summary]
    rows = [
        {column: run[member] for column, member in COLUMNS.items()}
        | {
            "rounds": f"{run['rounds']}/{run['of_rounds']}",
            "seconds": f"{run['seconds_of_rounds']:.1f}",
            "size": decimal(run["bytes"]),
            "began": _date(run["began"]),
            "data": short_name(run["data"]),
            "scores": _scores({name: value for name, value in run["scores"].items() if name != "accuracy"}),
        }
        for run in opened
    ]
    empty = [n for n in ("accuracy", "parent", "scores") if all(row[n] in (None, "") for row in rows)]
    rows = [{name: cell for name, cell in row.items() if name not in empty} for row in rows]
    if not summaries:
        say("no runs here; `roundweave train` makes one")
    if rows:
        console().print(TextTable(rows, spare=("scores", "data", "algorithm", "parent")))
    for summary in summaries:
        if summary not in opened:
            say(f"{summary['run']} is {summary['status']}: {summary['failure']}", style="yellow")


def _date(time_of: float) -> str:
    """A day and a minute of the last half year; of earlier times the day, with its year."""
    recent = abs(time.time() - time_of) < HALF_YEAR
    return time.strftime("%m-%d %H:%M" if recent else "%Y-%m-%d", time.localtime(time_of))


def _scores(scores: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {shown(name, value)}" for name, value in scores.items())


def print_result(run: StoredRun, seconds: Mapping[str, Any]) -> None:
    """Print how a training ended.

    `seconds` has the keys "seconds", the whole time, and "first_round_seconds", the time until the first commit.
    """
    summary = run_summary(run)
    scored = _scores({n: v for n, v in {"loss": summary["loss"], **summary["scores"]}.items() if v is not None})
    console().print(run.name, style="bold", end="")
    say(f": {summary['status']}, {run.done} rounds, {scored or 'not scored'}")
    if seconds["first_round_seconds"] is not None and summary["seconds_per_round"] is not None:
        first, each = seconds["first_round_seconds"], summary["seconds_per_round"]
        say(f"first round after {first:.1f} s, then {each:.3f} s a round; {seconds['seconds']:.1f} s in total")
    say(*_remarks(run), style="yellow")
    if count := summary["refused"]:
        were, them = ("update was", "it") if count == 1 else ("updates were", "them")
        say(f"{count} {were} refused; `roundweave show {run.name}` names {them}", style="yellow")
    say(f"stored in {summary['path']}", _next(run, summary["path"]))


def _next(run: StoredRun, path: str) -> str:
    """What to do with a run that was trained, in commands for its root."""
    called = run.name if above(path) == full_address(default_root()) else path
    of_python = f'rw.open_run("{called}").history()'
    longer = f"`roundweave resume {called} --rounds {2 * run.rounds}` trains on, " * (run.stop is None)
    more = f"{longer}`roundweave replay {called}` verifies"
    return f"next: `roundweave show {called}` prints the rounds, {more}; in Python {of_python}"


def _print_run(run: StoredRun) -> None:
    """Print a run's facts, its history and remarks."""
    history = run.history()
    say(repr(run))
    for name, value in _facts(run, history).items():
        console().print(f"{name:10}", style="bold", end=" ")
        say(value)
    console().print(TextTable(_shown_rounds(run, history)))
    if arrivals := by_worker(run):
        columns = ("worker", "partitions", "updates", "share", "staleness", "largest", "refused")
        rows = [row | {"partitions": listed(row["partitions"], run.partition_names)} for row in arrivals]
        console().print(TextTable([{name: row[name] for name in columns} for row in rows]))
    say(*_remarks(run), *_refusals(run), style="yellow")


def _remarks(run: StoredRun) -> list[str]:
    """Lines about an early end, lost or repeated rounds, pruned tensors and examples that were not scored."""
    remarks = [f"stopped early: {run.stop}"] if run.stop else []
    if lost := [number for number in run.lost if number < run.done]:
        remarks.append(f"lost: round {listed(lost)}, whose record is damaged; later rounds are intact")
    if after := [number for number in run.lost if number > run.done]:
        remarks.append(f"damaged: round {listed(after)}; `roundweave resume {run.name}` computes it again")
    if run.damaged:
        remarks.append(f"found damaged and computed again: round {listed(run.damaged)}")
    if run.absent.rounds:
        remarks.append(_kept(run))
    score, held_out = run.round(-1).score, run.attributes["data"]["held_out"]
    if left_out := score.left_out if score else held_out * (run.status == "complete"):
        remarks.append(f"{left_out} of {held_out} held-out examples were not scored: their loss is not a number")
    return remarks


def _kept(run: StoredRun) -> str:
    """The rounds whose states and updates a pruned run still has."""
    states, absent = ", ".join(cut(listed(run.kept).split(", "))), run.absent
    rounds = [number for number in run.committed if number and absent.has_update(number)]
    some = [number for number, _ in absent.carried]
    updates = f"; the updates of rounds {listed(rounds)}" if rounds else ""
    more = f"; some updates of rounds {listed(some)}, with which others are computed" if some else ""
    return f"stored: the states of rounds {states}{updates}{more}; all else is computed when it is opened"


def _refusals(run: StoredRun) -> list[str]:
    """A line for each of the first refused updates and absent partitions, and one for the others."""
    lines, absent, names = list[str](), defaultdict[int, list[int]](list), run.partition_names
    for round in map(run.round, run.committed):
        lines += [f"round {round.number} refused partition {names[p]}: {why}" for p, why in round.refused.items()]
        for partition in round.absent:
            absent[partition].append(round.number)
    lines += [
        f"round {listed(rounds)} continued without partition {names[p]}" for p, rounds in sorted(absent.items())
    ]
    return cut(lines, SHOWN_REFUSALS, f"; `roundweave report {run.name} --out PAGE.html` has them all")


def _facts(run: StoredRun, history: pd.DataFrame) -> dict[str, str]:
    """What a run is, as lines by their heading; empty lines are left out."""
    config, data, last = run.config, run.attributes["data"], run.round(-1).commit
    every, mean, names = config.get("resplit_every"), _mean_seconds(run.totals.seconds), run.partition_names
    score = " or to score partitions by" if "own_examples" in history else ""
    examples = f"{data['examples']} examples to train on{score}, {data['held_out']} held out"
    examples += f", digest {data['digest'][:16]}" if data["digest"] else ""
    facts = {
        "algorithm": _algorithm(run),
        "data": f"{_reference(config['data'])}{config.get('data_options') or ''}, {examples}",
        "split": config.get("split", "") + (f", a new one every {every} rounds" if every else ""),
        "partitions": "" if isinstance(names, range) else listed(range(len(names)), names),
        "classes": ", ".join(cut([f"{label} {name}" for label, name in enumerate(data.get("class_names", ()))])),
        "model": f"{_reference(config['model'])} {config['model_options'] or ''}",
        "plugins": recorded_plugins(run.attributes),
        "parent": _parent(run.attributes.get("parent")) or run.parent or "",
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.created)),
        "a round": "" if mean is None else f"{mean:.3f} s, the mean of all but the first",
        "run by": f"the executor {last.executor}" if last.executor else "",
        "on": _machines(last, run.partition_names),
        "ranks": _ranks(last.process_group),
        "stored in": full_address(run.address),
        "digest": run.digest,
        **{name: fact for plugin in plugin_classes() for name, fact in plugin.shown(run).items()},
        "failed": run.failure or "",
        "gate": "; ".join(run.judgement.reasons) if run.judgement else "",
    }
    return {name: fact for name, fact in facts.items() if fact}


def _machines(commit: Commit, names: Sequence[int | str]) -> str:
    """Which machine mapped which partitions and which stored the round; empty if one did all."""
    mapped = defaultdict[str, list[int]](list)
    for partition, record in commit.updates.items():
        mapped[record.worker.rpartition(":")[0]].append(partition)
    stored = commit.worker.rpartition(":")[0]
    if {*mapped} <= {stored}:
        return ""
    return "; ".join(
        [*(f"{m} mapped partition {listed(p, names)}" for m, p in mapped.items()), f"{stored} stored"]
    )


def _algorithm(run: StoredRun) -> str:
    """The algorithm, and its options that are not as by default; of the user's own, all that are set."""
    fields = option_fields(run.algorithm) if run.algorithm in ABOUT else {}
    usual = {name: field.default for name, field in fields.items()}
    _, *options = flat_config({"algorithm": run.config["algorithm"]}).items()
    return ", ".join([run.algorithm, *(f"{n} {v}" for n, v in options if v not in (None, "", usual.get(n)))])


def _ranks(group: ProcessGroupRecord | None) -> str:
    """The process group of the last round: its ranks, exchanged bytes and memory; empty if there was none."""
    if group is None:
        return ""
    shared = f", {group.sharing} to a network" if group.sharing > 1 else ""
    sent = ", ".join(f"{kind} {size / 1e6:.3g} MB" for kind, size in group.exchanged.items() if size)
    memory = f"at most {max(group.memory) / 1e6:.0f} MB a rank"
    return "; ".join(filter(None, (f"{group.ranks}{shared}", sent and f"a round exchanges {sent}", memory)))


def _parent(parent: Mapping[str, Any] | None) -> str:
    """The round of another run that this one began with, the chain of its record, and what was changed."""
    if parent is None:
        return ""
    changed = ", ".join(f"{name} {value}" for name, value in parent.get("changed", {}).items())
    again = f", reduced again: {changed or 'as it was'}" if "changed" in parent else ""
    return f"{parent['run']}@{parent['round']}{again}, chain {parent['chain']}"


def _reference(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_reference, value))
    return value if isinstance(value, str) else str(value["reference"])


def _shown_rounds(run: StoredRun, history: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows of the history to print; of a long one the first and last, and a row of an ellipsis in between."""
    if len(history) > SHOWN_ROUNDS and history["loss"].notna().any():
        history = history.dropna(subset=["loss"])
    if cut := len(history) > SHOWN_ROUNDS:
        history = history.iloc[[*range(3), *range(3 - SHOWN_ROUNDS, 0)]]
    own = [name for name in map(str, history) if name.startswith("own_") and name != "own_examples"]
    traffic = [name for name in ("received_bytes", "sent_bytes") if name in history]
    names = ["loss", *run.scores, "train_loss", *own, *traffic]
    table = history.reindex(columns=[*names, "accepted", "seconds"]).rename(columns={"accepted": "updates"})
    rows = table.reset_index().to_dict("records")
    return [*rows[:3], dict.fromkeys(rows[0], "") | {"round": "…"}, *rows[3:]] if cut else rows
