"""Starts and stops the process of a Prefect server.

The process may be started before it is known which root it serves; until then it only imports its modules.
"""

from __future__ import annotations

import atexit
import http.client
import os
import secrets
import subprocess
import sys
import tomllib
from pathlib import Path

from storage.errors import ClusterError

START_SECONDS, STOP_SECONDS = 60, 3
"""The longest time until a server answers, which usually takes 5 s, and until it ends when it is told to."""

SETTINGS = {
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
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

    With `once`, it ends after one flow. With `schedules`, it begins scheduled runs and has Prefect's web page,
    otherwise it only takes reports. It listens on this machine only and asks for a random password.
    """

    def __init__(self, once: bool = False, schedules: bool = False) -> None:
        self.once = once
        self.home: Path | None = None
        self._url: str | None = None
        self.password = f"roundweave:{secrets.token_urlsafe()}"
        settings = SETTINGS if schedules else SETTINGS | REPORTS_ALONE
        own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        self.process = subprocess.Popen(
            # Run as a file, not as a module: the user's current folder may hold another package named `flows`.
            [sys.executable, "-P", str(Path(__file__).with_name("api_server.py"))],
            bufsize=0,  # a failed write to a process that has ended must not be tried again at closing
            env=own | settings | {"PREFECT_SERVER_API_AUTH_STRING": self.password},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the server writes a log once it knows its folder
            start_new_session=True,  # Ctrl-C must reach only the flow, which still has to report its end
        )
        atexit.register(self.stop)

    @property
    def running(self) -> bool:
        """Whether the process is running and was not told to end."""
        assert self.process.stdin is not None
        return self.process.poll() is None and not self.process.stdin.closed

    def settle(self, home: Path) -> Server:
        """Give the server the folder for its files, which makes it begin to serve; returns the server itself."""
        assert self.process.stdin is not None
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        try:
            self.process.stdin.write(os.fsencode(home) + b"\n")
        except BrokenPipeError:
            self.process.wait()  # the process has ended; `url` will raise the error
        return self

    def url(self) -> str:
        """Wait until the server answers and return its API's address; raises `ClusterError` if it does not."""
        assert self.home is not None
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

    def release(self) -> None:
        """Tell a server that was for one flow to end, without waiting for it; others go on."""
        if self.once:
            self._end()

    def _end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def stop(self) -> None:
        """End the server and wait until its process is gone."""
        atexit.unregister(self.stop)
        if self.home is None:
            self.process.kill()
        self._end()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


_spare: list[Server] = []


def warm_up() -> None:
    """Start a server for this process's only flow in the background, unless the user has a Prefect API."""
    if not user_api():
        _spare.append(Server(once=True))


def started_server(home: Path) -> Server:
    """A server for a folder: one that `warm_up` has started, else a new one."""
    while _spare:
        if (spare := _spare.pop()).running:
            return spare.settle(home)
    return Server().settle(home)


def user_api() -> str | None:
    """The user's Prefect API address, from the environment or the active profile; None if there is none.

    Prefect itself is not imported for this, as that is slow.
    """
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
