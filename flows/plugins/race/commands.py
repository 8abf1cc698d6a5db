"""`roundweave plan`: chooses a training strategy by a race."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roundweave.flows.config.experiment import Experiment
from roundweave.flows.config.files import read_toml, write_toml
from roundweave.flows.config.train import Execution, TrainConfig
from roundweave.flows.terminal.common import Json, TextTable, TomlFile, console, output, say
from roundweave.flows.terminal.options import with_options
from roundweave.storage.places.base import file_path

if TYPE_CHECKING:
    from roundweave.flows.plugins.race.choosing import RaceResult

DECIDED = ("recombined", "executor", "partitions", "threads")
"""Training options that `roundweave plan` does not take, since a plan decides them or cannot use them."""


@with_options(Experiment, Execution, without=DECIDED)
def plan_command(
    config: TomlFile = None,
    save: Annotated[Path | None, typer.Option(help="file for the chosen configuration: .toml")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train with each strategy for the same few seconds, and choose the strategy that learns the most.

    Options of an algorithm: `roundweave plan --algorithm NAME --help`. Names: `roundweave list algorithms`.
    """
    from roundweave.flows.plugins.race.choosing import plan

    if save:
        file_path(save, "a configuration", (".toml",))
    with console(stderr=True).status("comparing training strategies"):
        made = plan(TrainConfig(**(read_toml(config) if config else {}) | options))
    if save:
        write_toml(save, made.planned)
    output(as_json, _summary(made), _print_plan, made, save)


def _summary(plan: RaceResult) -> dict[str, Any]:
    raced = {name: row.model_dump() for name, row in plan.raced.items()}
    return {
        "chosen": plan.chosen.name,
        "reason": plan.reason,
        "workers": plan.workers,
        "config": plan.chosen.changes(plan.config, plan.work),
        "strategies": raced | {name: {"refused": why} for name, why in plan.refused.items()},
    }


def _print_plan(plan: RaceResult, saved: Path | None) -> None:
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
    say(f"next: `roundweave train {saved}`" if saved else "next: give --save FILE.toml, and train with it")


def _time(seconds: float) -> str:
    """A time as text, in seconds, or in milliseconds below one second."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
