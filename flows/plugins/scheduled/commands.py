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

File = Annotated[Path, typer.Argument(help="TOML file, as for `roundweave train`")]
Cron = Annotated[str | None, typer.Option(help='cron schedule, such as "0 2 * * *" (at 2 every night)')]
Interval = Annotated[float | None, typer.Option(min=1, help="seconds between two runs, instead of --cron")]
Timezone = Annotated[
    str | None, typer.Option(help="time zone of --cron and {date}, such as Europe/Berlin; default: this machine's")
]
Name = Annotated[str | None, typer.Option(help="name of the deployment; default: of the run or file")]


def serve_command(
    config: File,
    cron: Cron = None,
    timezone: Timezone = None,
    interval: Interval = None,
    name: Name = None,
    metrics: Annotated[
        str | None, typer.Option(help="port or ADDRESS:PORT that serves metrics of the runs to Prometheus")
    ] = None,
) -> None:
    """Train a configuration on a schedule, and on demand from Prefect's page, until Ctrl-C.

    The command uses the Prefect server of PREFECT_API_URL or of a profile, or starts its own server.
    """
    wanted, called = _read(config, cron, interval, timezone, name)
    check(wanted)
    with prefect_api(wanted.root, schedules=True) as server:
        from roundweave.flows.plugins.scheduled.metrics import answering  # slow to import, as Prefect is
        from roundweave.flows.plugins.scheduled.serving import Serving

        with answering(wanted, metrics, called) if metrics else nullcontext() as address:
            serving = Serving(wanted, called, cron, interval)
            typer.echo(f"serving {serving.called}; its page: {serving.page}; Ctrl-C ends it")
            typer.echo(_clock(wanted))
            if server:
                typer.echo(f"the page asks for a password: {server.password}")
            if address:
                typer.echo(f"metrics for Prometheus: {address}")
            serving.run()
    typer.echo("no longer serving; the schedule is paused")


def deploy_command(
    config: File,
    work_pool: Annotated[str, typer.Option(help="Prefect work pool whose workers train")],
    cron: Cron = None,
    timezone: Timezone = None,
    interval: Interval = None,
    name: Name = None,
) -> None:
    """Deploy a configuration to a Prefect work pool, whose workers train it on a schedule or on demand."""
    wanted, called = _read(config, cron, interval, timezone, name)
    if not user_api():
        raise UsageError("no Prefect server to deploy to; set PREFECT_API_URL to that of the work pool")
    from roundweave.flows.plugins.scheduled.serving import deploy, page_of  # Prefect is slow to import

    deployment = deploy(wanted, called, work_pool, cron, interval)
    typer.echo(f"deployed {called} to {work_pool}; its page: {page_of(deployment)}")
    typer.echo(_clock(wanted))
    typer.echo(f"next: `prefect worker start --pool {work_pool}`, where Roundweave is installed")


def _read(
    file: Path, cron: str | None, interval: float | None, timezone: str | None, name: str | None
) -> tuple[TrainConfig, str]:
    """The configuration of a file, with the time zone by whose clock it is scheduled, wherever it is trained.

    And the deployment's name: a given one, or the run's if it is the same every day, else the file's.
    """
    if cron and interval:
        raise UsageError("cron and interval are both schedules; give one of them")
    values = read_toml(file)
    config = TrainConfig(**values | {"timezone": timezone or values.get("timezone") or _machine_timezone()})
    if vars(config)["date"]:
        raise UsageError("date names the day of one training; leave date out of a schedule")
    called = name or (config.name if config.name and not is_dated(config.name) else file.stem)
    if any(character in called for character in "/%&<>"):
        raise UsageError(f"{called!r} is no name of a deployment: Prefect refuses /, %, &, < and >; give --name")
    return config, called


def _clock(config: TrainConfig) -> str:
    """A line that says by whose clock schedules and dates go."""
    zone = ZoneInfo(vars(config)["timezone"])
    return f"--cron and {{date}} use the time zone {zone}, where it is {datetime.now(zone):%Y-%m-%d %H:%M}"


def _machine_timezone() -> str:
    """The name of this machine's time zone, such as Europe/Berlin; raises `UsageError` if it has none."""
    place = os.environ.get("TZ") or os.path.realpath("/etc/localtime")
    name = place.rpartition("zoneinfo/")[2].lstrip(":")
    if name in available_timezones():
        return name
    raise UsageError(f"this machine's time zone, {place}, has no name; give --timezone, such as Europe/Berlin")
