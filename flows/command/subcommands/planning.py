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
from flows.planning.simulating.costs import SimulatedCluster
from storage.errors import UsageError

DECIDED = ("recombined", "executor", "partitions", "threads", "planned")
"""Options of training that a plan decides, or that mean nothing to it."""


@with_options(Experiment, Execution, SimulatedCluster, without=DECIDED)
def plan_command(
    config: Annotated[
        Path | None,
        typer.Argument(help="a TOML file with any of the options below; its paths go from where it is"),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="where to write the chosen configuration: .toml")] = None,
    simulate: Annotated[
        str | None, typer.Option(help="simulate clusters of so many workers instead, such as 10,100,1000")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Have all strategies train for the same few seconds, and choose the one that learns the most.

    The options of an algorithm: `roundweave plan --algorithm NAME --help`. `roundweave list` has the names.
    """
    with clear_errors(as_json):
        cluster = {name: options.pop(name) for name in SimulatedCluster.model_fields}
        cluster = {name: value for name, value in cluster.items() if value is not None}
        values = (read_toml(config) if config else {}) | given(options, Experiment, Execution)
        if simulate is not None:
            _simulate(TrainConfig(**values), SimulatedCluster(**cluster), _workers(simulate, save), as_json)
        elif cluster:
            flags = ", ".join(f"--{name}" for name in cluster)
            raise UsageError(f"{flags}: of a simulated cluster only; give --simulate WORKERS, too")
        else:
            _plan(TrainConfig(**values), save, as_json)


def _plan(config: TrainConfig, save: Path | None, as_json: bool) -> None:
    if save:
        check_toml(save)
    quiet()
    with Console(stderr=True).status("strategies race"):
        made = plan(config)
    if save:
        write_toml(save, made.planned)
    if as_json:
        print_json(plan_summary(made))
    else:
        print_plan(made, save)


def _workers(text: str, save: Path | None) -> list[int]:
    """The numbers of workers that are to be simulated."""
    if save:
        raise UsageError("a simulation chooses nothing that could be saved; leave out --save, or --simulate")
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--simulate {text}: give numbers of workers, such as 10,100,1000") from error


def _simulate(config: TrainConfig, cluster: SimulatedCluster, workers: list[int], as_json: bool) -> None:
    from flows.command.printing.simulation_tables import print_simulation, simulation_summary
    from flows.planning.simulating.curves import beyond  # which imports what executors are made of

    quiet()
    with Console(stderr=True).status("measuring what the work costs, and simulating it"):
        curves = beyond(config, cluster, workers)
    if as_json:
        print_json(simulation_summary(curves))
    else:
        print_simulation(curves)
