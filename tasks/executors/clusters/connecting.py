"""Connects to Dask: to a local cluster, one of a class, an address, a scheduler file, or the current client."""

from __future__ import annotations

import logging
import os
import re
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, SpecCluster
from distributed.security import Security
from distributed.utils import json_load_robust

from roundweave.storage.errors import ClusterError, UsageError, reason
from roundweave.storage.parsing import from_toml
from roundweave.tasks.data.splits.placement import ANYWHERE, Placement
from roundweave.tasks.executors.base import shared
from roundweave.tasks.executors.clusters.fork_server import WORKER_ENVIRONMENT, start_method
from roundweave.tasks.executors.clusters.plugins import Loosen, begin_workers, import_nothing_ahead, prompt
from roundweave.tasks.executors.clusters.workers import (
    ANSWER_SECONDS,
    WORKER_SECONDS,
    begin_run,
    connected,
    on_scheduler,
    on_workers,
    wait_at_most,
)
from roundweave.tasks.numerics.fingerprints import source_digest
from roundweave.tasks.rounds.timing import notify

CONNECT_SECONDS = 10
"""The longest time to wait for the answer of a scheduler that was named."""

STARTS = 3
"""How often a local cluster is begun, as a worker may die before it has joined."""

HERE = "127.0.0.1"
"""Local clusters listen on this machine only, as anyone who reaches a scheduler can run code on it."""


LOCAL_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
    # Measurements for Dask's web pages: at Dask's defaults they take each process 25 ms a second and disturb maps.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.disk": False,
    # Failures reach the client as errors; the log would only add tracebacks of work that is then done again.
    "distributed.logging.distributed": "critical",
    # It imports torch before the worker joins, as a worker sends no heartbeats during an import.
    "distributed.worker.preload": ["roundweave.tasks.executors.clusters.ready"],
    # Dask would drop a worker for good that dies again within the default, short time.
    "distributed.deploy.lost-worker-timeout": "1d",
    "distributed.scheduler.allowed-failures": 5,
    # How long a worker tries to fetch data from another one that was just killed.
    "distributed.comm.timeouts.connect": "10s",
}

NO_PAGES: dict[str, object] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
"""Further settings of a private cluster: no web pages, as those ask for no password."""

NO_SCHEDULER_PAGES = "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES='[]'"
"""The variable by which the scheduler of Dask's own command has none."""


@contextmanager
def connect(
    scheduler: str | None,
    workers: int,
    private: bool = False,
    wait_for_workers: float = WORKER_SECONDS,
    placement: Placement = ANYWHERE,
    certificates: Path | None = None,
) -> Iterator[Client]:
    """Yield a client of the scheduler at an address or in a file, or of a new cluster of a named class.

    If no scheduler is named, it is the current client, or else one of a new local cluster. Whenever there are no
    workers, or none at a place of the `placement`, it waits for them for at most `wait_for_workers` seconds.
    `certificates` is the folder of a partner, for a scheduler that talks by TLS. Raises `ClusterError`, and
    `UsageError` for certificates.
    """
    current = _current_client() if scheduler is None else None
    if certificates is not None and (scheduler is None or is_class(scheduler)):
        raise UsageError("--certificates need a cluster that runs; give its --scheduler tls://…, too")
    if placement.stays and scheduler is None and current is None:
        lacks = f"a local cluster does not offer {', '.join(sorted({*placement.resources}))}"
        raise ClusterError(f"{lacks}; name the --scheduler of these {placement.kind}s")
    if private and (scheduler is not None or current is not None):
        raise ClusterError("--private protects a local cluster, and TLS protects one of your own; leave it out")
    with ExitStack() as stack:
        # Else Dask tells of a scheduler that is gone in 30 lines, before our own, and of each call on one of ours.
        stack.enter_context(_silent())
        if scheduler is not None:
            connection = (
                started_cluster(scheduler, workers) if is_class(scheduler) else _client(scheduler, certificates)
            )
            client = stack.enter_context(connection)
        elif current is not None:
            client = current
        else:
            cluster = stack.enter_context(local_cluster(workers, private))
            client = stack.enter_context(Client(cluster, set_as_default=False))
            prompt(client)
        if client is not current:
            client.rpc.timeout = ANSWER_SECONDS  # one that is busy is slow to take a further connection
        wait_at_most(client, wait_for_workers, placement)
        with connected(client):
            _make_ready(client)
            yield client


@contextmanager
def local_cluster(workers: int, private: bool = False) -> Iterator[LocalCluster]:
    """Start worker processes of one thread each on this machine; a private cluster uses TLS with a new key.

    It is private, too, where Dask's settings require encryption. Raises `ClusterError`.
    """
    private = private or dask.config.get("distributed.comm.require-encryption")
    options = {"processes": True, "silence_logs": "CRITICAL", "memory_limit": 0}
    options |= {"n_workers": workers, "threads_per_worker": 1, "host": HERE, "dashboard_address": f"{HERE}:0"}
    if private:
        options |= {"security": Security.temporary(), "scheduler_kwargs": {"dashboard": False}}
    import_nothing_ahead()
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        del sys.modules["__main__"].__file__  # workers would run this file
    # Some settings are read when the cluster is made, others when a worker is lost.
    with _silent(), _local_settings():
        with _one_at_a_time, dask.config.set(NO_PAGES if private else {}):
            cluster = _begun(options)
        try:
            yield cluster
        finally:
            # A nanny whose worker died while it began may have none to end; why the run ends matters more.
            with suppress(AssertionError):
                cluster.close()


def _begun(options: Mapping[str, Any]) -> LocalCluster:
    """Return a local cluster with all its workers; begun anew if one dies as it begins. Raises `ClusterError`."""
    failure: Exception | None = None
    for _ in range(STARTS):
        try:
            return LocalCluster(**options, env=dict(os.environ))
        except Exception as error:  # noqa: BLE001 - whatever a setting of Dask or a worker's start leads to
            failure = error
        # A worker that died is a `RuntimeError`, or an `AssertionError` if its nanny has none to end.
        if _unguarded() or not isinstance(root_of(failure), RuntimeError | AssertionError):
            raise ClusterError(f"{refused('a local cluster', failure)}{_unguarded()}")
    raise ClusterError(
        f"the local cluster did not begin, {STARTS} times in a row ({failure}); do its workers have too little "
        "memory? Give fewer --workers, or --executor inline"
    )


def _unguarded() -> str:
    """Advice for a script that trains wherever it is imported; empty for others."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or "__name__" in Path(file).read_text(errors="replace"):
        return ""
    return f'; {file} must train below `if __name__ == "__main__":`, as worker processes import it'


_one_at_a_time = threading.Lock()
"""Held while a local cluster is made, as settings that are only its own are those of the process meanwhile."""


@shared
@contextmanager
def _local_settings() -> Iterator[None]:
    """Dask's settings for local clusters."""
    with dask.config.set(LOCAL_SETTINGS | {"distributed.worker.multiprocessing-method": start_method()}):
        yield


@shared
@contextmanager
def _silent() -> Iterator[None]:
    """Have Dask log only critical lines.

    `silence_logs` does so for Dask's own handlers alone. Dask has none if the program had set up handlers of its
    own, as Prefect does, before Dask was imported.
    """
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]  # each has its own level
    with ExitStack() as stack:
        for logger in loggers:
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield


def _client(scheduler: str, certificates: Path | None) -> Client:
    # It imports cryptography, which a local cluster does not need.
    from roundweave.tasks.executors.clusters.certificates import security_for

    from_file = Path(scheduler).suffix == ".json"
    if from_file and not Path(scheduler).is_file():
        raise ClusterError(
            f"no scheduler file {scheduler}; start one with `dask scheduler --scheduler-file {scheduler}`"
        )
    try:
        address = json_load_robust(scheduler, timeout=CONNECT_SECONDS)["address"] if from_file else scheduler
        security = security_for(address, certificates, "client")
        return Client(address, security=security, timeout=CONNECT_SECONDS, set_as_default=False)
    except UsageError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        advice = "start one with `dask scheduler`, or leave --scheduler out for a local cluster"
        if isinstance(root_of(error), ssl.SSLError):
            advice = "its certificates and these must be of one `roundweave certificates`"
        raise ClusterError(
            f"no Dask scheduler answers at {scheduler} within {CONNECT_SECONDS} s ({reason(root_of(error))}); "
            f"{advice}"
        ) from error


def _make_ready(client: Client) -> None:
    """Note that a run begins. Raises `ClusterError` if Roundweave is not installed."""
    try:
        begin_run(client)
        on_workers(client, partial(client.run, source_digest))
    except ImportError as error:
        raise ClusterError(
            f"the scheduler or a worker has no Roundweave ({error}); install it there, as on the others"
        ) from error
    client.register_plugin(Loosen())
    if port := on_scheduler(client, _pages):
        tells = f"port {port} of the scheduler tells anybody of machines, places and folders, unencrypted"
        notify(f"{tells}; start it with {NO_SCHEDULER_PAGES} and --no-dashboard")


def _pages(dask_scheduler: Any) -> int:
    """Runs on the scheduler: the port of its web pages, if it has some though its own talk is encrypted."""
    shows = dask.config.get("distributed.scheduler.http.routes") and dask_scheduler.address.startswith("tls:")
    return int(dask_scheduler.http_server.port) if shows else 0


def _current_client() -> Client | None:
    try:
        client: Client = Client.current()
    except ValueError:
        return None
    if client.status == "running" and client.asynchronous:
        raise ClusterError("the current Dask client is asynchronous; make one without asynchronous=True")
    return client if client.status == "running" else None


SHORT = {"slurm": "dask_jobqueue.SLURMCluster"}
"""Short names of cluster classes."""

CLASS = re.compile(rf"({'|'.join(SHORT)}|(?:\w+\.)+\w*Cluster)(?::(.+\.toml))?")
"""The form of a cluster's name: a class, and optionally a colon and a TOML file with its options."""


def is_class(scheduler: str) -> bool:
    """Tell whether a text names the class of a cluster, and not an address or a file."""
    return CLASS.fullmatch(scheduler) is not None


@contextmanager
def started_cluster(scheduler: str, workers: int) -> Iterator[Client]:
    """Start a cluster and yield a client of it; the cluster and its jobs end with the context.

    It has `workers` workers, or as many as the table ``adapt`` of its options says, and replaces lost ones. Raises
    `ClusterError`.
    """
    match = CLASS.fullmatch(scheduler)
    assert match is not None
    name, options = SHORT.get(match[1], match[1]), _options(match[2])
    adapt = {"minimum": workers, "maximum": workers} | options.pop("adapt", {})
    package, _, kind = name.rpartition(".")
    try:
        cluster = getattr(import_module(package), kind)(**options)
    except (ImportError, AttributeError) as error:
        raise ClusterError(f"no class {name} is installed here ({error})") from error
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise refused(name, error) from error
    try:
        _begin(cluster, name, adapt)
        with Client(cluster, set_as_default=False) as client:
            yield client
    finally:
        with suppress(AssertionError):  # Dask asserts that all jobs were started, after ending those that were
            cluster.close()


def _options(file: str | None) -> dict[str, Any]:
    try:
        return from_toml(Path(file).read_text(encoding="utf-8")) if file else {}
    except OSError as error:
        raise ClusterError(f"cannot read {file} ({error.strerror}); it has the options of the cluster") from error
    except ValueError as error:
        raise ClusterError(f"{file} is no TOML file: {error}") from error


def _begin(cluster: Any, name: str, adapt: dict[str, Any]) -> None:
    """Start a cluster's workers, and make it keep their number."""
    if isinstance(cluster, SpecCluster) and adapt["minimum"]:
        # The cluster would do this itself, but only log an error if its first job is refused.
        cluster.worker_spec.update(cluster.new_worker_spec())
        try:
            begin_workers(cluster)
        except (OSError, RuntimeError) as error:
            raise refused(name, error) from error
    cluster.adapt(**adapt)


def root_of(error: BaseException) -> BaseException:
    """Return the first cause of an error that has a text, or the error itself."""
    cause = error.__cause__
    return root_of(cause) if isinstance(cause, Exception) and str(cause) else error


def refused(name: str, error: BaseException) -> ClusterError:
    """Return the error of a cluster that does not start, in one line.

    Dask's class may wrap the error of a command, whose own output stands at the end.
    """
    lines = str(root_of(error)).rpartition("stderr:\n")[2].splitlines()
    return ClusterError(f"{name} does not start: {'; '.join(filter(None, lines))}")
