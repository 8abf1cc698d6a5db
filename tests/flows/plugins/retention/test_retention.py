"""What Prefect's own server has of flow runs that ended long ago goes, while it serves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from roundweave.flows import train_flow
from roundweave.flows.serving.server import Server
from tests.flows.nights import night
from tests.flows.prefect_server import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.prefect

OF_RUNS = ("log", "artifact", "artifact_collection", "task_run", "flow_run_state")


def rows(database: Path, flow_run: str) -> dict[str, int]:
    """How many rows there are of a flow run."""
    with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection:
        count = "SELECT count(*) FROM {} WHERE flow_run_id = ?"
        return {name: connection.execute(count.format(name), [flow_run]).fetchone()[0] for name in OF_RUNS}


def test_a_new_server_lets_flow_runs_go_that_ended_long_ago_with_all_that_is_of_them(server) -> None:
    for name in ("trimmed", "left"):
        train_flow(night(name=name, rounds=1))
    (old,), (new,) = ([run["id"] for run in server.flow_runs(name)] for name in ("trimmed", "left"))
    database = server.home / "prefect.db"
    with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection, connection:
        connection.execute("UPDATE flow_run SET end_time = '2020-02-03 04:05:06.0' WHERE id = ?", [old])
    before = rows(database, old)
    assert all(before[name] for name in ("artifact", "flow_run_state"))
    own = Server().settle(server.home)
    try:
        until(lambda: not any(rows(database, old).values()), server.home / "server.log")
    finally:
        own.stop()
    assert rows(database, new)["flow_run_state"] == before["flow_run_state"]
    assert (server.flow_runs("trimmed"), [run["id"] for run in server.flow_runs("left")]) == ([], [new])
