"""A cluster that a run starts and closes, by the class that Dask or one of its kin has for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from distributed import Client, SpecCluster

from storage.errors import ClusterError
from storage.parsing import from_toml
from tasks.clusters.plugins import begin_workers

SHORT = {"slurm": "dask_jobqueue.SLURMCluster"}
"""Classes that have a name of their own here."""

CLASS = re.compile(rf"({'|'.join(SHORT)}|(?:\w+\.)+\w*Cluster)(?::(.+\.toml))?")
"""How a class is named, and the file with its options, if it needs any."""


def is_class(scheduler: str) -> bool:
    """Whether it names the class of a cluster, and no address or file."""
    return CLASS.fullmatch(scheduler) is not None


@contextmanager
def started(scheduler: str, workers: int) -> Iterator[Client]:
    """A client of a new cluster, which replaces workers that it loses; its jobs end with it.

    It has so many workers, or as many as the table ``adapt`` of its options says. Raises `ClusterError`.
    """
    found = CLASS.fullmatch(scheduler)
    assert found is not None
    name, options = SHORT.get(found[1], found[1]), _options(found[2])
    adapt = {"minimum": workers, "maximum": workers} | options.pop("adapt", {})
    package, _, kind = name.rpartition(".")
    try:
        cluster = getattr(import_module(package), kind)(**options)
    except (ImportError, AttributeError) as error:
        raise ClusterError(f"no class {name} is installed here ({error})") from error
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise _refused(name, error) from error
    try:
        _begin(cluster, name, adapt)
        with Client(cluster, set_as_default=False) as client:
            yield client
    finally:
        with suppress(AssertionError):  # Dask asserts that every job was begun, once it has ended those that were
            cluster.close()


def _options(file: str | None) -> dict[str, Any]:
    try:
        return from_toml(Path(file).read_text(encoding="utf-8")) if file else {}
    except OSError as error:
        raise ClusterError(f"cannot read {file} ({error.strerror}); it has the options of the cluster") from error
    except ValueError as error:
        raise ClusterError(f"{file} is no TOML file: {error}") from error


def _begin(cluster: Any, name: str, adapt: dict[str, Any]) -> None:
    """Have a cluster begin its workers, and keep so many."""
    if isinstance(cluster, SpecCluster) and adapt["minimum"]:
        # As it does itself, but where its first job is refused that is told, and not only logged.
        cluster.worker_spec.update(cluster.new_worker_spec())
        try:
            begin_workers(cluster)
        except (OSError, RuntimeError) as error:
            raise _refused(name, error) from error
    cluster.adapt(**adapt)


def _refused(name: str, error: BaseException) -> ClusterError:
    """What a class or a command that it calls says, in a line; commands say it last, Dask's errors first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).rpartition("stderr:\n")[2].splitlines()
    return ClusterError(f"{name} does not start: {'; '.join(filter(None, lines))}")
