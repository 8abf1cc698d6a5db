"""What Prefect's own server has of flow runs that ended long ago goes, while it serves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from roundweave.flows import train_flow
from roundweave.flows.plugins.retention.trimming import trim_server
from tests.flows.nights import night
from tests.patience import PATIENCE

pytestmark = pytest.mark.prefect

OF_RUNS = ("log", "artifact", "artifact_collection", "task_run", "flow_run_state")


def rows(database: Path, flow_run: str) -> dict[str, int]:
    """How many rows there are of a flow run."""
    with closing(sqlite3.connect(database)) as connection:
        count = "SELECT count(*) FROM {} WHERE flow_run_id = ?"
        return {name: connection.execute(count.format(name), [flow_run]).fetchone()[0] for name in OF_RUNS}


def test_flow_runs_that_ended_longer_ago_go_with_all_that_is_of_them(server) -> None:
    for name in ("trimmed", "left"):
        train_flow(night(name=name, rounds=1))
    (old,), (new,) = ([run["id"] for run in server.flow_runs(name)] for name in ("trimmed", "left"))
    database = server.home / "prefect.db"
    with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection, connection:
        connection.execute("UPDATE flow_run SET end_time = '2020-02-03 04:05:06.0' WHERE id = ?", [old])
    before = rows(database, old)
    assert all(before[name] for name in ("artifact", "flow_run_state"))
    (server.home / "start.lock").touch()  # as a root's own server does
    trim_server(server.home.parent, 86_400)
    assert not any(rows(database, old).values())
    assert rows(database, new)["flow_run_state"] == before["flow_run_state"]
    assert (server.flow_runs("trimmed"), [run["id"] for run in server.flow_runs("left")]) == ([], [new])


def test_a_large_log_is_emptied_and_a_folder_of_the_users_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("roundweave.flows.plugins.retention.trimming.LARGEST_LOG", 99)
    home = tmp_path / ".prefect"
    home.mkdir()
    (home / "server.log").write_bytes(b"x" * 100)
    with closing(sqlite3.connect(home / "prefect.db")) as connection:
        for name in ("log", "artifact", "artifact_collection", "event_resources", "events", "flow_run"):
            connection.execute(f"CREATE TABLE {name} (id, flow_run_id, occurred, end_time)")
    assert trim_server(tmp_path, 1.0) == 0  # no server of a run's was there
    assert (home / "server.log").stat().st_size == 100
    (home / "start.lock").touch()
    assert trim_server(tmp_path, 1.0) == 100
    assert (home / "server.log").stat().st_size == 0
