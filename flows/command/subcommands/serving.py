"""`roundweave serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command.errors import clear_errors
from flows.config.files import read_toml
from flows.config.train import TODAY, TrainConfig
from flows.serving.server import schedules_kept
from storage.errors import UsageError


def serve_command(
    config: Annotated[Path, typer.Argument(help="a TOML file, as `roundweave train` takes it")],
    cron: Annotated[str | None, typer.Option(help='when to train, such as "0 2 * * *" for each night')] = None,
    interval: Annotated[float | None, typer.Option(min=1, help="or every so many seconds")] = None,
    name: Annotated[str | None, typer.Option(help="of the deployment; default: the run's, or the file's")] = None,
) -> None:
    """Train a configuration on a schedule, and when Prefect is asked to, until Ctrl-C.

    The Prefect server is that of PREFECT_API_URL or a profile, else one that stays as long as this.
    """
    with clear_errors():
        if cron and interval:
            raise UsageError("cron and interval are two schedules; give one of them")
        wanted = TrainConfig(**read_toml(config))
        with schedules_kept(wanted.root) as server:
            from flows.training.serving import Serving  # Prefect is slow to import

            serving = Serving(wanted, name or _called(wanted, config), cron, interval)
            typer.echo(f"serving {serving.called}; its page: {serving.page}; Ctrl-C ends it")
            if server:
                typer.echo(f"the page asks for a password: {server.password}")
            serving.run()
        typer.echo("no longer served; its schedule is paused")


def _called(config: TrainConfig, file: Path) -> str:
    """What a deployment is called: as its run where that has one name, else as the file."""
    return config.name if config.name and TODAY not in config.name else file.stem
