"""`roundweave plan`: chooses a training strategy by a race, or simulates clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.command.common import Json, console, output, say, table
from flows.command.options import given, with_options
from flows.config.files import check_toml, read_toml, write_toml
from flows.config.train import Execution, Experiment, TrainConfig
from flows.planning.plan import Plan, plan
from flows.planning.simulating import SimulatedCluster, Simulation, simulate
from storage.errors import UsageError

DECIDED = ("recombined", "executor", "partitions", "threads", "planned")
"""Training options that `roundweave plan` does not take, since a plan decides them or cannot use them."""


@with_options(Experiment, Execution, SimulatedCluster, without=DECIDED)
def plan_command(
    config: Annotated[
        Path | None,
        typer.Argument(help="a TOML file with any of the options below; its paths go from where it is"),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="where to write the chosen configuration: .toml")] = None,
    simulated: Annotated[
        str | None,
        typer.Option("--simulate", help="simulate clusters of so many workers instead, such as 10,100,1000"),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Have all strategies train for the same few seconds, and choose the one that learns the most.

    The options of an algorithm: `roundweave plan --algorithm NAME --help`. `roundweave list` has the names.
    """
    cluster = {name: options.pop(name) for name in SimulatedCluster.model_fields}
    cluster = {name: value for name, value in cluster.items() if value is not None}
    values = (read_toml(config) if config else {}) | given(options, Experiment, Execution)
    if simulated is not None:
        _simulate(TrainConfig(**values), SimulatedCluster(**cluster), _workers(simulated, save), as_json)
    elif cluster:
        flags = ", ".join(f"--{name}" for name in cluster)
        raise UsageError(f"{flags}: of a simulated cluster only; give --simulate WORKERS, too")
    else:
        _plan(TrainConfig(**values), save, as_json)


def _plan(config: TrainConfig, save: Path | None, as_json: bool) -> None:
    if save:
        check_toml(save)
    with Console(stderr=True).status("strategies race"):
        made = plan(config)
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
    """Print the table of strategies, the choice with its reason, and the command that trains with it."""
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
    console().print(table(rows, right=True, bold=lambda row: row["strategy"] == plan.chosen.name))
    for name, why in plan.refused.items():
        say(f"not {name}: {why}", "dim")
    say(f"chosen: {plan.reason}")
    options = str(saved) if saved else _flags(plan.chosen.changes(plan.config, plan.work))
    say(f"`roundweave train {options}` does it so")


def _flags(changes: Mapping[str, Any]) -> str:
    """The options of `roundweave train` that make these changes of the configuration."""
    algorithm = {"algorithm": changes["algorithm"]["name"], **changes["algorithm"]}
    values = {**changes, **algorithm, "quorum": None, "name": None}
    switches = {True: "--{}", False: "--no-{}"}
    flags = [
        (switches[value] if isinstance(value, bool) else "--{} {}").format(name.replace("_", "-"), value)
        for name, value in values.items()
        if value is not None
    ]
    return " ".join(flags)


def _time(seconds: float) -> str:
    """A time as text, in seconds, or in milliseconds below one second."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _workers(text: str, save: Path | None) -> list[int]:
    """The numbers of workers to simulate, parsed from text such as 10,100; raises `UsageError`."""
    if save:
        raise UsageError("a simulation chooses nothing that could be saved; leave out --save, or --simulate")
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--simulate {text}: give numbers of workers, such as 10,100,1000") from error


def _simulate(config: TrainConfig, cluster: SimulatedCluster, workers: list[int], as_json: bool) -> None:
    with Console(stderr=True).status("measuring what the work costs, and simulating it"):
        simulation = simulate(config, cluster, workers, seed=config.seed)
    output(as_json, simulation_summary(simulation), print_simulation, simulation)


def simulation_summary(simulation: Simulation) -> dict[str, Any]:
    """A simulation as a JSON object."""
    return {
        "costs": {kind: asdict(costs) for kind, costs in simulation.costs.items()},
        "cluster": simulation.cluster.model_dump(),
        "seed": simulation.seed,
        "points": [asdict(point) for point in simulation.points],
    }


def print_simulation(simulation: Simulation) -> None:
    """Print a table of schedules; for each number of workers the one with the shortest epoch is bold."""
    best = {simulation.best(point.workers).schedule + str(point.workers) for point in simulation.points}
    rows = [
        {
            "schedule": point.schedule,
            "workers": point.workers,
            "an epoch": _time(point.epoch),
            "a round": _time(point.seconds),
            "9 of 10 within": _time(point.slowest),
            "efficiency": f"{100 * point.efficiency:.3g} %",
            "bound by": f"{point.bound} ({point.share:.0%})",
        }
        for point in simulation.points
    ]
    console().print(table(rows, right=True, bold=lambda row: f"{row['schedule']}{row['workers']}" in best))
