"""`roundweave worker` and `roundweave certificates`: joining a cluster from another machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer


def worker_command(
    scheduler: Annotated[str, typer.Argument(help="address of the Dask scheduler, such as tcp://head:8786")],
    site: Annotated[
        str | None, typer.Option(help="the place whose data this worker reads, such as berlin")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="folder with key and certificate, for tls://; see `roundweave certificates`"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="address by which the others reach this machine")] = None,
    memory_limit: Annotated[str, typer.Option(help="such as 8GB, or a fraction of this machine's memory")] = "0.9",
) -> None:
    """Work for a Dask cluster with one process of one thread, until Ctrl-C.

    Whenever the scheduler is away or the link is cut, it tries again with growing pauses, for days.
    """
    from roundweave.tasks.executors.clusters.joining import Joining  # Dask is slow to import

    Joining(scheduler, site, certificates, host, memory_limit, _say).run()


def certificates_command(
    folder: Annotated[Path, typer.Argument(help="where to write them")],
    partners: Annotated[list[str], typer.Argument(help="who gets a key each, such as head berlin paris")],
) -> None:
    """Write an authority, and for each partner a folder with key and certificate, for tls:// addresses.

    Give each partner its own folder and nothing else. The key of the authority admits further partners.
    """
    from roundweave.tasks.executors.clusters.certificates import (  # Dask is slow to import
        AUTHORITY,
        CERTIFICATE,
        KEY,
        write_certificates,
    )

    folders = write_certificates(folder, partners)
    for own in folders:
        typer.echo(f"wrote {own}")
    files = f"--tls-ca-file {folders[0] / AUTHORITY} --tls-cert {folders[0] / CERTIFICATE}"
    typer.echo(f"now: dask scheduler --protocol tls {files} --tls-key {folders[0] / KEY}")
    typer.echo(f"and: roundweave worker tls://HOST:8786 --certificates {folders[-1]}")


def _say(line: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")
