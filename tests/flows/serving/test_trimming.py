"""What Prefect's own server has of flow runs that ended long ago goes, while it serves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from prefect import get_client
from prefect.exceptions import ObjectNotFound

import roundweave as rw
from roundweave.flows import train_flow
from roundweave.flows.serving.trimming import trim_server
from tests.patience import PATIENCE

pytestmark = pytest.mark.prefect

OF_RUNS = ("log", "artifact", "artifact_collection", "task_run", "flow_run_state")


def rows(database: Path, flow_run: object) -> dict[str, int]:
    """How many rows there are of a flow run."""
    with closing(sqlite3.connect(database)) as connection:
        count = "SELECT count(*) FROM {} WHERE flow_run_id = ?"
        return {name: connection.execute(count.format(name), [str(flow_run)]).fetchone()[0] for name in OF_RUNS}


def test_flow_runs_that_ended_longer_ago_go_with_all_that_is_of_them(tmp_path: Path, server_root: Path) -> None:
    def train(name: str) -> object:
        small = {"model": "logistic", "partitions": 2, "local_steps": 1, "executor": "inline", "rounds": 1}
        train_flow(rw.TrainConfig(root=tmp_path, name=name, **small))
        with get_client(sync_client=True) as client:
            (found,) = [run for run in client.read_flow_runs() if run.name == name]
        return found.id

    old, new = train("trimmed"), train("left")
    database = server_root / ".prefect/prefect.db"
    with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection, connection:
        connection.execute("UPDATE flow_run SET end_time = '2020-02-03 04:05:06.0' WHERE id = ?", [str(old)])
    before = rows(database, old)
    assert all(before[name] for name in ("artifact", "flow_run_state"))
    trim_server(server_root, 86_400)
    assert not any(rows(database, old).values())
    assert rows(database, new)["flow_run_state"] == before["flow_run_state"]
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(new).name == "left"
        with pytest.raises(ObjectNotFound):
            client.read_flow_run(old)
    assert train("after")


def test_a_large_log_is_cut_and_a_folder_of_the_users_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    home = tmp_path / ".prefect"
    home.mkdir()
    (home / "server.log").write_bytes(b"x" * 100)
    sqlite3.connect(home / "prefect.db").close()
    (home / "prefect.db").touch()
    assert trim_server(tmp_path, 1.0) == 0  # no server of a run's was there
    assert (home / "server.log").stat().st_size == 100
