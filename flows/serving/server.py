"""Where flows report: the user's Prefect API if there is one, else a server under the runs' root."""

from __future__ import annotations

import atexit
import http.client
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from storage.errors import ClusterError
from storage.places.addresses import Where
from storage.runs.names import local_root

START_SECONDS, STOP_SECONDS = 60, 3


SETTINGS = {
    "PREFECT_SERVER_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
}
"""No UI, no services that a single process has no use for."""


class Server:
    """A Prefect server that is starting, or has started, beside this process."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self._url: str | None = None
        own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        places = {"PREFECT_HOME": str(home), "PREFECT_PROFILES_PATH": str(home / "profiles.toml")}
        with (home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                # Not as a module: the folder that the user is in may have flows of its own.
                [sys.executable, "-P", str(Path(__file__).with_name("api_server.py"))],
                env=own | SETTINGS | places | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the flow, which still has to report its end
            )
        atexit.register(self.stop)

    def url(self) -> str:
        """The address of its API, once it answers; raises `ClusterError`."""
        if self._url is None:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            try:
                connection = http.client.HTTPConnection("127.0.0.1", int(line), timeout=START_SECONDS)
                connection.request("GET", "/api/health")
                connection.getresponse().read()
                connection.close()
            except (OSError, ValueError) as error:
                log = self.home / "server.log"
                raise ClusterError(f"Prefect's server did not start; {log} says why") from error
            self._url = f"http://127.0.0.1:{int(line)}/api"
        return self._url

    def stop(self) -> None:
        """End it and wait for it."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


_servers: dict[Path, Server] = {}


def start_server(root: Where) -> Server | None:
    """Begin to start a server for a root, without waiting; None where the user has a Prefect API."""
    if _user_api():
        return None
    home = _home(root)
    if home not in _servers or _servers[home].process.poll() is not None:
        _servers[home] = Server(home)
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
    if not _user_api():
        os.environ.setdefault("PREFECT_HOME", str(_home(root)))


@contextmanager
def prefect_api(root: Where) -> Iterator[None]:
    """Within, Prefect reports to the user's API, else to the root's own server."""
    server = start_server(root)
    if server is None:
        yield
        return
    place_prefect_home(root)
    Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    before = {
        key: os.environ.get(key) for key in ("PREFECT_API_URL", "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED")
    }
    os.environ["PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED"] = "false"
    try:
        import_module("prefect.flows")  # it takes a second to import, and the server longer to start
        os.environ["PREFECT_API_URL"] = server.url()
        _refresh_settings()
        with _without_heartbeat():
            yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        _refresh_settings()


def _user_api() -> str | None:
    """The API address of the environment or the active profile, found without importing Prefect."""
    if "PREFECT_API_URL" in os.environ:
        return os.environ["PREFECT_API_URL"]
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    if not profiles.is_file():
        return None
    content = tomllib.loads(profiles.read_text(encoding="utf-8"))
    active = os.environ.get("PREFECT_PROFILE", content.get("active"))
    url: str | None = content.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")
    return url


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
