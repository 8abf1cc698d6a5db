"""`roundweave plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.command.arguments import Json
from flows.command.errors import clear_errors, print_json
from flows.command.options import given, with_options
from flows.command.printing.plan_tables import plan_summary, print_plan
from flows.command.printing.timing import quiet
from flows.config.files import check_toml, read_toml, write_toml
from flows.config.train import Execution, Experiment, TrainConfig
from flows.planning.plan import plan


@with_options(Experiment, Execution, without=("recombined", "executor", "partitions", "threads", "planned"))
def plan_command(
    config: Annotated[
        Path | None,
        typer.Argument(help="a TOML file with any of the options below; its paths go from where it is"),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="where to write the chosen configuration: .toml")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Measure the work and the cluster for some seconds, predict what each strategy takes, and choose one."""
    with clear_errors(as_json):
        if save:
            check_toml(save)
        values = (read_toml(config) if config else {}) | given(options, Experiment, Execution)
        quiet()
        with Console(stderr=True).status("trying strategies"):
            made = plan(TrainConfig(**values))
        if save:
            write_toml(save, made.planned)
        if as_json:
            print_json(plan_summary(made))
        else:
            print_plan(made, save)
