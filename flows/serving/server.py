"""Where flows report: the user's Prefect API if there is one, else a server under the runs' root."""

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
    """Begin to start a server for a root, without waiting; None where the user has a Prefect API.

    One of another root ends: a process has one at a time.
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
    """End a root's server where there is one; it would end with this process, and serve other runs until then."""
    server = _servers.pop(_home(root), None)
    if server is not None:
        server.stop()


def _home(root: Where) -> Path:
    return local_root(root).resolve() / ".prefect"


def place_prefect_home(root: Where) -> None:
    """Have Prefect keep its files under the root and not in the home folder, unless the user says where."""
    if not user_api():
        os.environ.setdefault("PREFECT_HOME", str(_home(root)))


def import_prefect(root: Where) -> Importing:
    """Begin to import Prefect, which takes as long as a cluster takes to start."""
    place_prefect_home(root)
    # With the last one Prefect writes down what a flow is called with.
    return Importing("prefect.flows", "fastapi.encoders")


@contextmanager
def prefect_api(root: Where) -> Iterator[None]:
    """Within, Prefect reports to the user's API, else to the root's own server."""
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
        import_module("prefect.flows")  # it takes a second to import, and the server longer to start
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
    """Within, there is a Prefect API that begins scheduled runs: the user's, else that of the server given."""
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
    """A flow's heartbeat takes a second to end, and a server that ends with its flow has no use for it."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def _refresh_settings() -> None:
    """Prefect reads its settings when it is imported; where it is, it must read them again."""
    if "prefect.context" in sys.modules:
        import prefect.context

        prefect.context.refresh_global_settings_context()
