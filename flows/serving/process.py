"""The process of a Prefect server. It may be started before it is known for which root, and then only imports."""

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
"""How long a server may take to answer, where to begin takes 5 s, and to end once it is told to."""

SETTINGS = {
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
}
"""The database is brought up to date before."""

REPORTS_ALONE = {
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
}
"""No page, and no services that a single process has no use for, such as those that begin scheduled runs."""


class Server:
    """A Prefect server beside this process: it is starting until its `url` is known; `once` for one flow alone.

    With `schedules` it begins scheduled runs and has Prefect's page, else it takes reports alone.
    Who else is on this machine may reach it, and is answered with its password alone.
    """

    def __init__(self, once: bool = False, schedules: bool = False) -> None:
        self.once = once
        self.home: Path | None = None
        self._url: str | None = None
        self.password = f"roundweave:{secrets.token_urlsafe()}"
        settings = SETTINGS if schedules else SETTINGS | REPORTS_ALONE
        own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        self.process = subprocess.Popen(
            # Not as a module: the folder that the user is in may have flows of its own.
            [sys.executable, "-P", str(Path(__file__).with_name("api_server.py"))],
            bufsize=0,  # what cannot be written to one that has ended is not kept until it is closed
            env=own | settings | {"PREFECT_SERVER_API_AUTH_STRING": self.password},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it has a log once it has a home
            start_new_session=True,  # Ctrl-C is for the flow, which still has to report its end
        )
        atexit.register(self.stop)

    @property
    def running(self) -> bool:
        """Whether its process has not ended, and was not told to."""
        assert self.process.stdin is not None
        return self.process.poll() is None and not self.process.stdin.closed

    def settle(self, home: Path) -> Server:
        """Have it serve with its files in a folder."""
        assert self.process.stdin is not None
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        try:
            self.process.stdin.write(os.fsencode(home) + b"\n")
        except BrokenPipeError:
            self.process.wait()  # who asks for its address is told
        return self

    def url(self) -> str:
        """The address of its API, once it answers; raises `ClusterError`."""
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
        """Have it end, without waiting, where it was for one flow."""
        if self.once:
            self._end()

    def _end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def stop(self) -> None:
        """End it and wait for it."""
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
    """Have a server begin to start for the only flow of this process, unless the user has a Prefect API."""
    if not user_api():
        _spare.append(Server(once=True))


def started_server(home: Path) -> Server:
    """A server that is starting for a folder."""
    while _spare:
        if (spare := _spare.pop()).running:
            return spare.settle(home)
    return Server().settle(home)


def user_api() -> str | None:
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
