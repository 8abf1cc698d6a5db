"""Prefect's API server as a process of its own, which runs this file and imports nothing else of the project.

It is started before it is known where its files lie, and is told its home in the first line of its standard input;
its other settings come by the environment. It prints its port, and it ends when its standard input does, so it
cannot outlive the process that started it, however that one ends.
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

AHEAD = ("uvicorn", "prefect.server.api.server", "alembic.command")
"""What takes long to import."""

NOWHERE = Path(os.devnull, "prefect")
"""Prefect's home until it is known: nothing is read there, and nothing can be written."""


def main() -> None:
    """Serve until standard input ends."""
    # Bound before the slow imports: a request waits in the backlog until the server accepts it.
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    gc.disable()  # what is imported stays, and looking through it takes a quarter of the time
    os.environ |= _home(NOWHERE)
    for name in AHEAD:
        with suppress(ImportError):  # said below, where there is a log to say it in
            import_module(name)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    home = Path(os.fsdecode(line.removesuffix(b"\n")))
    # Where a browser that has its page finds it.
    os.environ |= _home(home) | {"PREFECT_UI_API_URL": f"http://127.0.0.1:{listener.getsockname()[1]}/api"}
    with (home / "server.log").open("ab") as log:
        os.dup2(log.fileno(), 2)
    _serve(home, listener)


def _home(folder: Path) -> dict[str, str]:
    places = {"HOME": folder, "PROFILES_PATH": folder / "profiles.toml", "UI_STATIC_DIRECTORY": folder / "page"}
    return {f"PREFECT_{name}": str(place) for name, place in places.items()}


def _serve(home: Path, listener: socket.socket) -> None:
    import uvicorn
    from prefect.context import refresh_global_settings_context
    from prefect.server.api.server import create_app

    refresh_global_settings_context()

    # Two servers that make the same new database at once would trip over one another.
    with Path(home, "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place_database(home / "prefect.db", template())
    app = create_app(final=True, ephemeral=os.environ.get("PREFECT_SERVER_UI_ENABLED") == "false")
    gc.freeze()
    gc.enable()
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on")).run(sockets=[listener])


def template() -> Path:
    """Where an empty database of this version of Prefect is kept for new roots: making one takes 4 s."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache, "roundweave", f"prefect-{version('prefect')}.db")


def place_database(database: Path, template: Path) -> None:
    """Bring a server's database up to date; a new one is a copy of the template, which the first one leaves."""
    from alembic.util import CommandError
    from sqlalchemy.exc import DatabaseError

    new = not database.exists()
    copied = new and template.exists() and _copied(template, database)
    try:
        _migrate()
    except (CommandError, DatabaseError):
        if not copied:
            raise
        database.unlink()  # the template is of another Prefect, whatever its name says
        copied = False
        _migrate()
    if new and not copied:
        _copied(database, template)


def _migrate() -> None:
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())


def _copied(source: Path, target: Path) -> bool:
    """Whether one database is now a copy of another, which it comes to be at once; if not, the log says why."""
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


def _end_with_parent() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(5)
    os._exit(1)


if __name__ == "__main__":
    main()
