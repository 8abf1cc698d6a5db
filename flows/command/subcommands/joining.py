"""`roundweave worker` and `roundweave certificates`: joining a cluster from another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roundweave.flows.terminal.common import say


def worker_command(
    scheduler: Annotated[str, typer.Argument(help="address of the scheduler, such as tcp://head:8786")],
    site: Annotated[str | None, typer.Option(help="site whose data this worker can read, such as berlin")] = None,
    certificates: Annotated[
        Path | None, typer.Option(help="folder with TLS key and certificates; see `roundweave certificates`")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="address of this machine for other workers; default: as the scheduler is reached"),
    ] = None,
    memory_limit: Annotated[str, typer.Option(help="memory limit: 8GB, or a fraction of all memory")] = "0.9",
) -> None:
    """Run a worker of a Dask cluster, with one process and one thread, until Ctrl-C.

    After a lost connection, the worker tries to reconnect, at least once a minute.

    Every member of a cluster can run code on all its machines. Admit only partners whom you trust.
    """
    from roundweave.tasks.data.splits.placement import Placement
    from roundweave.tasks.executors.clusters.joining import join_cluster  # Dask is slow to import

    at = Placement("site", () if site is None else (site,))
    join_cluster(scheduler, at, certificates, host, memory_limit)


def certificates_command(
    folder: Annotated[Path, typer.Argument(help="folder to write to")],
    partners: Annotated[list[str], typer.Argument(help="names of the partners, such as head berlin paris")],
) -> None:
    """Write a certificate authority, and a folder with TLS key and certificates for each partner of a cluster.

    Give each partner only the folder of its name. Keep the key of the authority: it signs further partners.
    """
    from roundweave.tasks.executors.clusters import certificates  # Dask is slow to import
    from roundweave.tasks.executors.clusters.connecting import NO_SCHEDULER_PAGES

    first, *others = certificates.write_certificates(folder, partners)
    say(*(f"wrote {own}" for own in (first, *others)))
    names = certificates.AUTHORITY, certificates.CERTIFICATE, certificates.KEY
    authority, certificate, key = (first / name for name in names)
    files = f"--tls-ca-file {authority} --tls-cert {certificate} --tls-key {key}"
    say(f"next: {NO_SCHEDULER_PAGES} dask scheduler --no-dashboard --protocol tls {files}")
    say(f"then: roundweave worker tls://HOST:8786 --certificates {(others or [first])[-1]}")
