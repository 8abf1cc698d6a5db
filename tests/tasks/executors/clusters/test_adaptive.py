"""Clusters that adapt from zero: workers come for what is asked and go when nothing is; the bits are the same."""

from __future__ import annotations

import time

import pytest
from distributed import Client, LocalCluster

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor

FIELDS = {"partitions": 4, "rounds": 6, "local_steps": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])
def test_runs_ask_a_cluster_that_adapts_from_zero_for_workers(train, kind) -> None:
    """The second one when those of the first have gone."""
    reference = train(**FIELDS, name="reference")
    options = {"n_workers": 0, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as watching:
        cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=2)
        for name in ("first", "second"):
            while watching.nthreads():
                time.sleep(0.1)
            with connect(cluster.scheduler_address, 2) as client:
                run = train(kind(client), 2, **FIELDS, name=name)
            assert run.digest == reference.digest
