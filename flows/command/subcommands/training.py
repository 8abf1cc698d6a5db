"""`roundweave train`, `resume` and `plan`: train a network in rounds, and choose how by a race."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from roundweave.flows.command.common import (
    Json,
    Quiet,
    Root,
    RunName,
    TextTable,
    TomlFile,
    Trust,
    console,
    output,
    print_json,
    say,
)
from roundweave.flows.command.options import with_options
from roundweave.flows.config.experiment import Experiment
from roundweave.flows.config.files import read_toml, write_toml
from roundweave.flows.config.train import Execution, TrainConfig
from roundweave.flows.reporting.listening import Listener, listening, shown_commit
from roundweave.storage.places.base import file_path
from roundweave.storage.rounds.commits import Commit

if TYPE_CHECKING:
    from roundweave.flows.planning.plan import Plan

REJECTED = 3
"""The exit code of a training whose run its gate rejected."""

DECIDED = ("recombined", "executor", "partitions", "threads", "planned")
"""Training options that `roundweave plan` does not take, since a plan decides them or cannot use them."""


@with_options(Experiment, Execution, without=("recombined", "planned"))
def train_command(
    config: TomlFile = None,
    start: Annotated[
        str | None, typer.Option("--from", help="begin with RUN@12, as its run is but for what is given here")
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a network in rounds; the same name and experiment go on after the last committed round.

    The options of an algorithm: `roundweave train --algorithm NAME --help`. `roundweave list` has the names.
    """
    values = read_toml(config) if config else {}
    if "algorithm" in options and isinstance(values.get("algorithm"), dict):
        options["algorithm"] = values["algorithm"] | {"name": options["algorithm"]}
    values |= options
    if not start:
        _train(TrainConfig(**values), as_json, quiet)
        return
    from roundweave.flows.config.recorded import fork

    _train(fork(start, trust=trust, **values), as_json, quiet)


@with_options(Execution, without=("name", "root", "planned", "on_complete", "timezone"))
def resume_command(
    run: RunName,
    trust: Trust = False,
    root: Root = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Go on with a run after its last committed round, from what is kept in its store."""
    from roundweave.flows.config.recorded import resumed_config

    _train(resumed_config(run, root, trust, options), as_json, quiet)


def _train(config: TrainConfig, as_json: bool, quiet: bool) -> None:
    from roundweave.flows.training.running import train

    timer = _Timer(quiet)
    with listening(timer):
        run = train(config, bar=not quiet)
    from roundweave.flows.command.subcommands.looking import print_result, run_summary

    seconds = {"seconds": timer.elapsed(), "first_round_seconds": timer.first}
    if as_json:
        print_json(run_summary(run) | seconds | {"skipped": timer.why})
    elif not quiet and run.status != "running":  # else another process trains it, as a notice has said
        print_result(run, seconds)
    if run.status == "rejected":
        sys.exit(REJECTED)


class _Timer(Listener):
    """A listener that measures the time of the first commit, and prints a line a round where no bar is shown.

    `why` says why there was nothing to do; None if there was something.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or sys.stderr.isatty()
        self.first: float | None = None
        self.why: str | None = None

    def skipped(self, text: str) -> None:
        self.why = text

    def committed(self, commit: Commit, rounds: int) -> None:
        self.first = self.first or self.elapsed()
        if not self.quiet:
            print(f"round {commit.round}/{rounds}  {shown_commit(commit)}".rstrip(), file=sys.stderr)

    def elapsed(self) -> float:
        """Seconds since the command's process started."""
        return time.time() - float(psutil.Process().create_time())


@with_options(Experiment, Execution, without=DECIDED)
def plan_command(
    config: TomlFile = None,
    save: Annotated[Path | None, typer.Option(help="where to write the chosen configuration: .toml")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Have all strategies train for the same few seconds, and choose the one that learns the most.

    The options of an algorithm: `roundweave plan --algorithm NAME --help`. `roundweave list` has the names.
    """
    from roundweave.flows.planning.plan import plan

    if save:
        file_path(save, "a configuration", (".toml",))
    with console(stderr=True).status("strategies race"):
        made = plan(TrainConfig(**(read_toml(config) if config else {}) | options))
    if save:
        write_toml(save, made.planned)
    output(as_json, _summary(made), _print_plan, made, save)


def _summary(plan: Plan) -> dict[str, Any]:
    raced = {name: row.model_dump() for name, row in plan.raced.items()}
    return {
        "chosen": plan.chosen.name,
        "reason": plan.reason,
        "workers": plan.workers,
        "config": plan.chosen.changes(plan.config, plan.work),
        "strategies": raced | {name: {"refused": why} for name, why in plan.refused.items()},
    }


def _print_plan(plan: Plan, saved: Path | None) -> None:
    """Print the table of strategies, the choice with its reason, and how to train with it."""
    rows = [
        {
            "strategy": name,
            "loss": f"{row.loss:.3g}",
            "accuracy": "" if row.accuracy is None else f"{row.accuracy:.1%}",
            "trained": _time(row.trained),
            "rounds": f"{row.rounds:.3g}",
            "a round": _time(row.seconds),
            "an epoch": _time(row.epoch),
        }
        for name, row in plan.raced.items()
    ]
    console().print(TextTable(rows, right=True))
    for name, why in plan.refused.items():
        say(f"not {name}: {why}", style="dim")
    say(f"chosen: {plan.reason}")
    say(f"`roundweave train {saved}` does it so" if saved else "--save FILE.toml writes it, to train by")


def _time(seconds: float) -> str:
    """A time as text, in seconds, or in milliseconds below one second."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
