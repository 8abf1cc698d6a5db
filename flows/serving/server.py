"""Prefect's API for flows: the user's if there is one, else a server of this process with files under the root.

The server's process may be started before its root is known; until then it only imports its modules.
"""

from __future__ import annotations

import atexit
import os
import secrets
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path

from roundweave.flows.reporting.listening import in_flow
from roundweave.storage.errors import ClusterError, UsageError, failing_as, reason
from roundweave.storage.places.base import Where
from roundweave.tasks.executors.base import shared

START_SECONDS, STOP_SECONDS = 60, 7
"""The longest time until a server answers, which usually takes 5 s, and until it ends, at most 5 s if it runs."""

SETTINGS = {
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
}
"""Settings of every server. It need not migrate its database, as `place_database` has done so before."""

REPORTS_ALONE = {
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
}
"""Further settings of a server that only takes reports: no web page and no services for scheduled runs."""


class Server:
    """A Prefect server in a process of its own. It starts in the background; `url` waits until it answers.

    With `schedules`, it begins scheduled runs and has Prefect's web page, otherwise it only takes reports. It
    listens on this machine only and asks for a random password. It ends with this process at the latest.
    """

    def __init__(self, schedules: bool = False) -> None:
        self.home: Path | None = None
        self.password = f"roundweave:{secrets.token_urlsafe()}"
        self._port, self._answers = 0, False
        settings = SETTINGS if schedules else SETTINGS | REPORTS_ALONE
        # Prefect takes its variables in lower case, too.
        own = {key: value for key, value in os.environ.items() if not key.upper().startswith("PREFECT_")}
        self.process = subprocess.Popen(
            # Without the current folder, whose files may be called as modules that the server imports.
            [sys.executable, "-P", "-m", "roundweave.flows.serving.api_server"],
            bufsize=0,  # a failed write to a process that has ended must not be tried again at closing
            env=own | settings | {"PREFECT_SERVER_API_AUTH_STRING": self.password},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the server writes a log once it knows its folder
            # Ctrl-C must reach only the flow, which still has to report its end. A session of its own would have
            # as much of the cores as the whole training, whatever its priority (sched(7), the autogroup feature).
            process_group=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        atexit.register(self.stop)

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def settle(self, home: Path) -> Server:
        """Give the server the folder for its files, which makes it begin to serve; returns the server itself."""
        if self.home is None:
            home.mkdir(parents=True, exist_ok=True)
            self.home = home
            try:
                self._input.write(os.fsencode(home) + b"\n")
            except BrokenPipeError:
                self.process.wait()  # the process has ended; `url` will raise the error
        return self

    def url(self) -> str:
        """Wait until the server answers and return its API's address. Raises `ClusterError` if it does not."""
        assert self.home is not None
        if not self._answers:
            import httpx  # slow to import, and Prefect imports it, too

            try:
                self._port = self._port or int(self._output.readline())  # the process prints one line
                httpx.get(f"http://127.0.0.1:{self._port}/api/health", timeout=START_SECONDS, trust_env=False)
            except (httpx.HTTPError, ValueError) as error:
                log = self.home / "server.log"
                raise ClusterError(f"Prefect's server did not start; {log} says why") from error
            self._answers = True
        return f"http://127.0.0.1:{self._port}/api"

    def stop(self) -> None:
        """End the server, by force if it does not end by itself, and wait until its process is gone."""
        atexit.unregister(self.stop)
        self._input.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._output.close()


_servers: list[Server] = []
"""This process's server; empty if it has none."""


def warm_up() -> None:
    """Start a server for the next flow of this process in the background, unless there is one or a user's API."""
    if not _servers and not user_api():
        _servers.append(Server())


def start_server(root: Where, schedules: bool = False) -> Server | None:
    """Start the root's server in the background, or take the one that runs; None if the user has a Prefect API.

    A process has one server at a time, so that a server of another root is ended.
    """
    if user_api():
        return None
    home = server_home(root)
    if _servers and not (_servers[0].running and _servers[0].home in (None, home)):
        _servers.pop().stop()
    if not _servers:
        _servers.append(Server(schedules))
    return _servers[0].settle(home)


def stop_server(root: Where) -> None:
    """End a root's server if there is one. Otherwise it serves further runs until this process ends."""
    if _servers and _servers[0].home == server_home(root):
        _servers.pop().stop()


def place_prefect_home(root: Where) -> None:
    """Make Prefect keep its files under the root instead of the home folder, unless the user chose a place."""
    if not user_api():
        os.environ.setdefault("PREFECT_HOME", str(server_home(root)))


def server_home(root: Where) -> Path:
    """Return the folder of the files of a root's own Prefect server."""
    from roundweave.storage.runs.names import local_root  # imported here: the command starts a server first of all

    return local_root(root).resolve() / ".prefect"


def prefect_server(root: Where, schedules: bool = False) -> AbstractContextManager[Server | None]:
    """Start the root's server in the background; None if there is a Prefect API of the user's or of their flow.

    Runs that go on at once in one process share the first one's, which serves further runs until the process ends.
    """
    return nullcontext() if in_flow() else _one_server(root, schedules)


@shared
@contextmanager
def _one_server(root: Where, schedules: bool) -> Iterator[Server | None]:
    place_prefect_home(root)
    yield start_server(root, schedules)


@contextmanager
def prefect_api(root: Where, schedules: bool = False) -> Iterator[Server | None]:
    """While the context is open, Prefect reports to the root's own server, or to the user's API if there is one.

    Yields the server, or None for the user's API. With `schedules`, a server of its own begins scheduled runs.
    Raises `ClusterError` if the server does not start.
    """
    with prefect_server(root, schedules) as server:
        if server is None:
            yield None
            return
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
        import_module("prefect.flows")  # imported, which takes a second, while the server is still starting
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        # Prefect's heartbeat takes a second to end, and this process's own server does not need it.
        with _addressed(server), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield server


@shared
@contextmanager
def _addressed(server: Server) -> Iterator[None]:
    """Make Prefect in this process, and in those that it starts, report to a server, and by no proxy."""
    from prefect.context import refresh_global_settings_context

    proxies = {name: f"{os.environ.get(name, '')},127.0.0.1" for name in ("no_proxy", "NO_PROXY")}
    names = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED")
    values = dict(zip(names, (server.url(), server.password, "false"), strict=True)) | proxies
    before = {name: os.environ.pop(name) for name in values if name in os.environ}
    try:
        os.environ |= values
        refresh_global_settings_context()
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ |= before
        refresh_global_settings_context()


def user_api() -> str | None:
    """Return the user's Prefect API address, from the environment or the active profile; None if there is none.

    Prefect itself is not imported for this, as that is slow. Raises `UsageError` for profiles that are damaged.
    """
    if "PREFECT_API_URL" in os.environ:
        return os.environ["PREFECT_API_URL"]
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    if not profiles.is_file():
        return None
    with failing_as(lambda error: UsageError(f"Prefect's {profiles} cannot be read ({reason(error)}); repair it")):
        content = tomllib.loads(profiles.read_text(encoding="utf-8"))
        active = os.environ.get("PREFECT_PROFILE", content.get("active"))
        url: str | None = content.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")
    return url
