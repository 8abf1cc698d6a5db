"""What Prefect's own server of a root has kept of old flow runs is deleted."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime

from roundweave.flows.serving.server import server_home
from roundweave.storage.places.base import Where
from roundweave.storage.places.local import folder_bytes

OLD_FLOW_RUNS = "(SELECT id FROM flow_run WHERE end_time < :then)"
TRIMMED = (
    *(f"DELETE FROM {n} WHERE flow_run_id IN {OLD_FLOW_RUNS}" for n in ("log", "artifact", "artifact_collection")),
    *(f"DELETE FROM {name} WHERE occurred < :then" for name in ("event_resources", "events")),
    f"DELETE FROM flow_run WHERE id IN {OLD_FLOW_RUNS}",
)
"""Delete flow runs that ended before a time, of Prefect 3.8 and 3.9; their states and task runs go with them."""

LARGEST_LOG = 1 << 24
"""The most bytes of a server's log that stay."""


def trim_server(root: Where, older: float) -> int:
    """Delete what a root's own server has of flow runs that ended so many seconds ago; returns the bytes less.

    The server may be running. A server of the user's has no files there. Raises `sqlite3.Error`.
    """
    home = server_home(root)
    database, log, before = home / "prefect.db", home / "server.log", folder_bytes(home)
    if not database.is_file() or not (home / "start.lock").is_file():
        return 0
    then = datetime.fromtimestamp(time.time() - older, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    with (home / "start.lock").open("w") as lock, closing(sqlite3.connect(database, timeout=10)) as connection:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a server that starts places the database first
        connection.execute("PRAGMA foreign_keys = ON")
        with connection:
            deleted = sum(connection.execute(statement, {"then": then}).rowcount for statement in TRIMMED)
        if deleted:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if log.is_file() and log.stat().st_size > LARGEST_LOG:
        os.truncate(log, 0)
    return max(0, before - folder_bytes(home))
