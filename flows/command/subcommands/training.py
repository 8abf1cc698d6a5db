"""`roundweave train` and `roundweave resume`: train a network in rounds."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import psutil
import typer

from roundweave.flows.config.experiment import Experiment
from roundweave.flows.config.files import read_toml
from roundweave.flows.config.train import Execution, TrainConfig
from roundweave.flows.reporting.listening import Listener, listening, shown_commit
from roundweave.flows.terminal.common import Json, Quiet, Root, RunName, TomlFile, Trust, print_json
from roundweave.flows.terminal.options import with_options
from roundweave.storage.rounds.commits import Commit

REJECTED = 3
"""The exit code of a training whose run its gate rejected."""


@with_options(Experiment, Execution, without=("recombined",))
def train_command(
    config: TomlFile = None,
    start: Annotated[
        str | None, typer.Option("--from", help="fork RUN@12: begin with its state, and its options unless given")
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a network in rounds, or resume the run of the same name and experiment.

    Options of an algorithm: `roundweave train --algorithm NAME --help`. Names: `roundweave list algorithms`.
    """
    values = read_toml(config) if config else {}
    if "algorithm" in options and isinstance(values.get("algorithm"), dict):
        options["algorithm"] = values["algorithm"] | {"name": options["algorithm"]}
    values |= options
    if not start:
        _train(TrainConfig(**values), as_json, quiet)
        return
    from roundweave.flows.forking import fork

    _train(fork(start, trust=trust, **values), as_json, quiet)


@with_options(Execution, without=("name", "root"))
@with_options(Experiment, without=tuple(Experiment.model_fields.keys() - {"plugins"}))
def resume_command(
    run: RunName,
    trust: Trust = False,
    root: Root = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Resume a run after its last committed round, with the configuration from its store."""
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
