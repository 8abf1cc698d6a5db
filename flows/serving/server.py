"""The Prefect API that flows report to: the user's if there is one, else a server with files under the root."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from flows.serving.process import Server, started_server, user_api
from storage.places.addresses import Where
from storage.runs.names import local_root
from tasks.imports import Importing

_servers: dict[Path, Server] = {}


def start_server(root: Where) -> Server | None:
    """Start a server for a root in the background; None if the user has a Prefect API.

    A process has one server at a time, so that a server of another root is ended.
    """
    if user_api():
        return None
    home = _home(root)
    for other in _servers.keys() - {home}:
        _servers.pop(other).stop()
    if home not in _servers or not _servers[home].running:
        _servers[home] = started_server(home)
    return _servers[home]


def stop_server(root: Where) -> None:
    """End a root's server if there is one. Otherwise it serves further runs until this process ends."""
    server = _servers.pop(_home(root), None)
    if server is not None:
        server.stop()


def _home(root: Where) -> Path:
    return local_root(root).resolve() / ".prefect"


def place_prefect_home(root: Where) -> None:
    """Make Prefect keep its files under the root instead of the home folder, unless the user chose a place."""
    if not user_api():
        os.environ.setdefault("PREFECT_HOME", str(_home(root)))


def import_prefect(root: Where) -> Importing:
    """Import Prefect in the background, as the import takes as long as a cluster's start."""
    place_prefect_home(root)
    # Prefect needs `fastapi.encoders` to record a flow's parameters.
    return Importing("prefect.flows", "fastapi.encoders")


@contextmanager
def prefect_api(root: Where) -> Iterator[None]:
    """While the context is open, Prefect reports to the user's API, or else to the root's own server.

    Raises `ClusterError` if that server does not start.
    """
    server = start_server(root)
    if server is None:
        yield
        return
    place_prefect_home(root)
    Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    names = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED")
    before = {name: os.environ.get(name) for name in names}
    os.environ["PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED"] = "false"
    try:
        import_module("prefect.flows")  # imported, which takes a second, while the server is still starting
        os.environ["PREFECT_API_URL"] = server.url()
        os.environ["PREFECT_API_AUTH_STRING"] = server.password
        _refresh_settings()
        with _without_heartbeat():
            yield
    finally:
        server.release()
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        _refresh_settings()


@contextmanager
def schedules_kept(root: Where) -> Iterator[Server | None]:
    """Provide a Prefect API that begins scheduled runs while the context is open.

    Yields None if it is the user's own API, else the server that was started for it and is ended afterwards.
    """
    place_prefect_home(root)
    if user_api():
        yield None
        return
    server = _servers[_home(root)] = Server(schedules=True).settle(_home(root))
    try:
        with prefect_api(root):
            yield server
    finally:
        stop_server(root)


@contextmanager
def _without_heartbeat() -> Iterator[None]:
    """Turn off Prefect's flow heartbeat: it takes a second to end, and a server of one flow does not need it."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def _refresh_settings() -> None:
    """Make Prefect read its settings from the environment again if it is already imported."""
    if "prefect.context" in sys.modules:
        import prefect.context

        prefect.context.refresh_global_settings_context()
