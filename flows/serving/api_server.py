"""Prefect's API server as a separate process, which runs this file and imports nothing else of this project.

The process is started before its folder is known, and reads the folder from the first line of its standard input;
all other settings come from the environment. It prints its port. It ends when its standard input is closed, so it
never outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import socket
import sqlite3
import sys
import threading
from contextlib import closing, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue

AHEAD = ("uvicorn", "prefect.server.api.server", "alembic.command")
"""Modules that take long to import, and are imported before the folder is known."""

PRIORITY = 3
"""By how much other processes go first: a training begins without its reports, but cannot end without them."""

NOWHERE = Path(os.devnull, "prefect")
"""Prefect's home until the real one is known: a path where nothing can be read or written."""

LARGEST_LOG = 1 << 24
"""The most bytes of a log that a new server adds to; it empties a larger one."""


def main() -> None:
    """Serve until standard input is closed."""
    # Prefect takes settings from files in the current folder, which are the user's: here there are none.
    os.chdir(Path(__file__).parent)
    # Bound before the slow imports: a request waits in the backlog until the server accepts it.
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    # Connections inherit this. Without it each answer but the first waits 40 ms for the client's acknowledgement;
    # asyncio sets it only for sockets that were made with the protocol's number.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(listener.getsockname()[1], flush=True)
    homes: SimpleQueue[Path] = SimpleQueue()
    threading.Thread(target=_listen_to_parent, args=(homes,), daemon=True).start()
    os.nice(PRIORITY)
    gc.disable()  # imported modules stay anyway, and garbage collection takes a quarter of the import time
    os.environ |= _home(NOWHERE)
    for name in AHEAD:
        with suppress(ImportError):  # the import below raises it again, where there is a log for it
            import_module(name)
    home = homes.get()
    # The page in a browser reads the API's address from this setting.
    os.environ |= _home(home) | {"PREFECT_UI_API_URL": _url(listener)}
    log_to(home / "server.log")
    _serve(home, listener)


def log_to(log: Path) -> None:
    """Write standard error to the end of a log, which is emptied before if it is large."""
    with log.open("ab") as file:
        if file.tell() > LARGEST_LOG:
            file.truncate(0)
        os.dup2(file.fileno(), 2)


def _home(folder: Path) -> dict[str, str]:
    places = {"HOME": folder, "PROFILES_PATH": folder / "profiles.toml", "UI_STATIC_DIRECTORY": folder / "page"}
    return {f"PREFECT_{name}": str(place) for name, place in places.items()}


def _url(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}/api"


def _serve(home: Path, listener: socket.socket) -> None:
    import uvicorn
    from prefect.context import refresh_global_settings_context
    from prefect.server.api.server import create_app

    refresh_global_settings_context()

    # Two servers must not create the same database at once.
    with Path(home, "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place_database(home / "prefect.db", template())
    gc.freeze()  # `create_app` collects garbage, which would search all that is imported for a third of a second
    app = create_app(final=True, ephemeral=os.environ.get("PREFECT_SERVER_UI_ENABLED") == "false")
    gc.freeze()
    gc.enable()
    threading.Thread(target=_begin, args=(_url(listener),), daemon=True).start()
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on")).run(sockets=[listener])


def _begin(url: str) -> None:
    """Make the first request, which opens the database and takes 0.2 s, while the flow still imports modules.

    Then let go of old flow runs, which Prefect does by itself only in a server that schedules.
    """
    import httpx
    from prefect.server.database import provide_database_interface
    from prefect.server.services.db_vacuum import vacuum_old_flow_runs, vacuum_stale_artifact_collections

    user, _, password = os.environ["PREFECT_SERVER_API_AUTH_STRING"].partition(":")
    httpx.get(f"{url}/ready", auth=(user, password), timeout=None, trust_env=False)
    for vacuum in (vacuum_old_flow_runs, vacuum_stale_artifact_collections):
        asyncio.run(vacuum(db=provide_database_interface()))


def template() -> Path:
    """Return the cached file of an empty database of this version of Prefect; making a database takes 4 s."""
    cache = Path("~/.cache").expanduser() / os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache, "roundweave", f"prefect-{version('prefect')}.db")


def place_database(database: Path, template: Path) -> None:
    """Migrate a server's database to this version of Prefect.

    A new database is copied from the template. If there is no template, it becomes the template for others.
    """
    new = not database.exists()
    copied = new and template.exists() and _copied(template, database)
    _migrate()
    if new and not copied:
        _copied(database, template)


def _migrate() -> None:
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())


def _copied(source: Path, target: Path) -> bool:
    """Copy a database atomically; returns whether it worked, and writes the reason to the log if not."""
    copy = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(source)) as connection:
            connection.execute("VACUUM INTO ?", [str(copy)])
        copy.replace(target)
        return True
    except (OSError, sqlite3.Error) as error:
        print(f"{target} is no copy of {source}: {error}", file=sys.stderr)
        return False
    finally:
        with suppress(OSError):
            copy.unlink()


def _listen_to_parent(homes: SimpleQueue[Path]) -> None:
    """Receive the folder, and end this process, by force after 5 s, once standard input is closed."""
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(0)
    homes.put(Path(os.fsdecode(line.removesuffix(b"\n"))))
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(5)
    os._exit(1)


if __name__ == "__main__":
    main()
