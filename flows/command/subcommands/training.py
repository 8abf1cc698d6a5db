"""`roundweave train` and `roundweave resume`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.command.arguments import Json, Quiet, Root, RunName, Trust
from flows.command.errors import clear_errors, print_json
from flows.command.options import given, with_options
from flows.command.printing import summaries, tables
from flows.command.printing.timing import train_timed
from flows.config.files import read_toml
from flows.config.recorded import resumed_config
from flows.config.train import Execution, Experiment, TrainConfig
from flows.evidence.forking import fork
from flows.reporting.listening import begun, going_on


@with_options(Experiment, Execution, without=("recombined", "planned"))
def train_command(
    config: Annotated[
        Path | None,
        typer.Argument(help="a TOML file with any of the options below; its paths go from where it is"),
    ] = None,
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
    with clear_errors(as_json, _interrupted):
        values = read_toml(config) if config else {}
        flags = given(options, Experiment, Execution)
        if "algorithm" in flags and isinstance(values.get("algorithm"), dict):
            flags["algorithm"] = values["algorithm"] | {"name": flags["algorithm"]}
        values = values | flags
        _train(fork(start, trust=trust, **values) if start else TrainConfig(**values), as_json, quiet)


@with_options(Execution, without=("name", "root", "planned", "on_complete"))
def resume_command(
    run: RunName,
    trust: Trust = False,
    root: Root = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Go on with a run after its last committed round, from what is kept in its store."""
    with clear_errors(as_json, partial(_interrupted, run)):
        _train(resumed_config(run, root, trust, given(options, Execution)), as_json, quiet)


def _interrupted(name: str | None = None) -> str:
    """What an interrupt says of the run of a name; without one of the run that was begun, if there was any."""
    return f"interrupted; {going_on(name or (begun[-1] if begun else None))}"


def _train(config: TrainConfig, as_json: bool, quiet: bool) -> None:
    run, seconds = train_timed(config, quiet)
    if as_json:
        print_json(summaries.run_summary(run) | seconds)
    elif not quiet and run.status != "running":  # by another process, which was said
        tables.print_result(run, seconds)
