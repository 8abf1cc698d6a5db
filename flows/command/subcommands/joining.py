"""`roundweave worker` and `roundweave certificates`: joining a cluster from another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roundweave.flows.terminal.common import say


def worker_command(
    scheduler: Annotated[str, typer.Argument(help="address of its scheduler, such as tcp://head:8786")],
    site: Annotated[
        str | None, typer.Option(help="the place whose data this worker can read, such as berlin")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="folder with key and certificates, for tls://; see `roundweave certificates`"),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="this machine's address for the others; default: as the scheduler is reached"),
    ] = None,
    memory_limit: Annotated[str, typer.Option(help="such as 8GB, or a fraction of this machine's memory")] = "0.9",
) -> None:
    """Work for a Dask cluster with one process of one thread, until Ctrl-C.

    While the scheduler is away or the link is cut, it tries again, at least once a minute.

    Who may join a cluster may run code on all of its machines: let only partners whom you trust reach it.
    """
    from roundweave.tasks.data.placement import Placement
    from roundweave.tasks.executors.clusters.joining import join_cluster  # Dask is slow to import

    at = Placement("site", () if site is None else (site,))
    join_cluster(scheduler, at, certificates, host, memory_limit)


def certificates_command(
    folder: Annotated[Path, typer.Argument(help="where to write them")],
    partners: Annotated[list[str], typer.Argument(help="who gets a key each, such as head berlin paris")],
) -> None:
    """Write an authority, and a folder with key and certificates for each partner, for tls:// addresses.

    Give each partner its own folder and nothing else. The authority's key stays with you, and adds partners later.
    """
    from roundweave.tasks.executors.clusters import certificates  # Dask is slow to import
    from roundweave.tasks.executors.clusters.connecting import NO_SCHEDULER_PAGES

    first, *others = certificates.write_certificates(folder, partners)
    say(*(f"wrote {own}" for own in (first, *others)))
    names = certificates.AUTHORITY, certificates.CERTIFICATE, certificates.KEY
    authority, certificate, key = (first / name for name in names)
    files = f"--tls-ca-file {authority} --tls-cert {certificate} --tls-key {key}"
    say(f"now: {NO_SCHEDULER_PAGES} dask scheduler --no-dashboard --protocol tls {files}")
    say(f"and: roundweave worker tls://HOST:8786 --certificates {(others or [first])[-1]}")
