"""`roundweave serve` and `roundweave deploy`: train a configuration on a schedule."""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

import typer

from roundweave.flows.config.files import read_toml
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.plugins.scheduled.checking import check
from roundweave.flows.plugins.scheduled.dates import is_dated
from roundweave.flows.serving.server import prefect_api, user_api
from roundweave.storage.errors import UsageError

File = Annotated[Path, typer.Argument(help="a TOML file, as `roundweave train` takes it")]
Cron = Annotated[str | None, typer.Option(help='when to train, such as "0 2 * * *" for each night')]
Interval = Annotated[float | None, typer.Option(min=1, help="or every so many seconds")]
Timezone = Annotated[
    str | None,
    typer.Option(help="by whose clock --cron and {date} go, such as Europe/Berlin; default: this machine's"),
]
Name = Annotated[str | None, typer.Option(help="of the deployment; default: the run's, or the file's")]


def serve_command(
    config: File,
    cron: Cron = None,
    timezone: Timezone = None,
    interval: Interval = None,
    name: Name = None,
    metrics: Annotated[
        str | None, typer.Option(help="a port, or ADDRESS:PORT, at which Prometheus reads how the runs are")
    ] = None,
) -> None:
    """Train a configuration on a schedule, and when Prefect is asked to, until Ctrl-C.

    The Prefect server is that of PREFECT_API_URL or a profile, else one that stays as long as this.
    """
    wanted, called = _read(config, cron, interval, timezone, name)
    check(wanted)
    with prefect_api(wanted.root, schedules=True) as server:
        from roundweave.flows.plugins.scheduled.metrics import answering  # slow to import, as Prefect is
        from roundweave.flows.plugins.scheduled.serving import Serving

        with answering(wanted, metrics) if metrics else nullcontext() as address:
            serving = Serving(wanted, called, cron, interval)
            typer.echo(f"serving {serving.called}; its page: {serving.page}; Ctrl-C ends it")
            typer.echo(_clock(wanted))
            if server:
                typer.echo(f"the page asks for a password: {server.password}")
            if address:
                typer.echo(f"its runs for Prometheus: {address}")
            serving.run()
    typer.echo("no longer served; its schedule is paused")


def deploy_command(
    config: File,
    work_pool: Annotated[str, typer.Option(help="of Prefect, whose workers train it")],
    cron: Cron = None,
    timezone: Timezone = None,
    interval: Interval = None,
    name: Name = None,
) -> None:
    """Have the workers of a Prefect work pool train a configuration on a schedule, and when they are asked to."""
    wanted, called = _read(config, cron, interval, timezone, name)
    if not user_api():
        raise UsageError("no Prefect server to deploy to; set PREFECT_API_URL to that of the work pool")
    from roundweave.flows.plugins.scheduled.serving import deploy, page_of  # Prefect is slow to import

    deployment = deploy(wanted, called, work_pool, cron, interval)
    typer.echo(f"deployed {called} to {work_pool}; its page: {page_of(deployment)}")
    typer.echo(_clock(wanted))
    typer.echo(f"`prefect worker start --pool {work_pool}` trains it where Roundweave is installed")


def _read(
    file: Path, cron: str | None, interval: float | None, timezone: str | None, name: str | None
) -> tuple[TrainConfig, str]:
    """The configuration of a file, with the time zone by whose clock it is scheduled, wherever it is trained.

    And the deployment's name: a given one, or the run's if it is the same every day, else the file's.
    """
    if cron and interval:
        raise UsageError("cron and interval are two schedules; give one of them")
    values = read_toml(file)
    config = TrainConfig(**values | {"timezone": timezone or values.get("timezone") or _machine_timezone()})
    called = name or (config.name if config.name and not is_dated(config.name) else file.stem)
    if any(character in called for character in "/%&<>"):
        raise UsageError(f"{called!r} is no name of a deployment: Prefect refuses /, %, &, < and >; give --name")
    return config, called


def _clock(config: TrainConfig) -> str:
    """A line that says by whose clock schedules and dates go."""
    zone = ZoneInfo(vars(config)["timezone"])
    return f"--cron and {{date}} go by the clock of {zone}, where it is {datetime.now(zone):%Y-%m-%d %H:%M}"


def _machine_timezone() -> str:
    """The name of this machine's time zone, such as Europe/Berlin; raises `UsageError` if it has none."""
    place = os.environ.get("TZ") or os.path.realpath("/etc/localtime")
    name = place.rpartition("zoneinfo/")[2].lstrip(":")
    if name in available_timezones():
        return name
    raise UsageError(f"this machine's time zone, {place}, has no name; give --timezone, such as Europe/Berlin")
