"""Starts and closes a cluster by its class, from Dask or a related package such as dask_jobqueue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from distributed import Client, SpecCluster

from roundweave.storage.errors import ClusterError
from roundweave.storage.parsing import from_toml
from roundweave.tasks.executors.clusters.plugins import begin_workers

SHORT = {"slurm": "dask_jobqueue.SLURMCluster"}
"""Short names of cluster classes."""

CLASS = re.compile(rf"({'|'.join(SHORT)}|(?:\w+\.)+\w*Cluster)(?::(.+\.toml))?")
"""The form of a cluster's name: a class, and optionally a colon and a TOML file with its options."""


def is_class(scheduler: str) -> bool:
    """Whether a text names the class of a cluster, and not an address or a file."""
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
    """The error that was the first cause of an error, or the error itself."""
    return error if error.__cause__ is None else root_of(error.__cause__)


def refused(name: str, error: BaseException) -> ClusterError:
    """The error of a cluster that does not start, in one line.

    Dask's class may wrap the error of a command, whose own output stands at the end.
    """
    lines = str(root_of(error)).rpartition("stderr:\n")[2].splitlines()
    return ClusterError(f"{name} does not start: {'; '.join(filter(None, lines))}")
