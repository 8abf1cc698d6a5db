"""Workers that Dask pauses, as their memory is short: that is told, and no run waits for them for ever."""

from __future__ import annotations

import time

import dask
import pytest
from distributed import LocalCluster, Status

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor

AT_ONCE = {f"distributed.worker.memory.{what}": share for what, share in {"pause": 0.001, "spill": False}.items()}


@pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])
def test_workers_that_are_all_paused_end_a_run_with_a_line(train, kind, caplog) -> None:
    options = {"n_workers": 1, "processes": False, "memory_limit": "4GiB", "dashboard_address": ":0"}
    with (
        dask.config.set(AT_ONCE),
        LocalCluster(**options, silence_logs="CRITICAL") as cluster,
        connect(cluster.scheduler_address, 1) as client,
        pytest.raises(
            ClusterError, match="every worker has been paused by Dask for 3 s, as its memory is short; give"
        ),
    ):
        while cluster.workers[0].status is not Status.paused:
            time.sleep(0.1)
        train(kind(client, Setting(worker_timeout=3.0)), 1, rounds=2)
    (notice,) = [record.getMessage() for record in caplog.records if record.name == "roundweave"]
    assert "is paused by Dask: it uses" in notice
    assert notice.endswith("of 4.00 GiB of memory; give workers more")
