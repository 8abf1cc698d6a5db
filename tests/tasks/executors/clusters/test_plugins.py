"""What is used of Dask without being documented is there, and named where it is not."""

from __future__ import annotations

import distributed.utils
from distributed import Client, SpecCluster
from distributed.batched import BatchedSend

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.plugins import BATCHING_SECONDS


def test_names_that_are_used_are_there() -> None:
    gone = "distributed has no {} any more: mend tasks/executors/clusters/plugins.py"
    assert hasattr(distributed.utils, "_forkserver_preload_set"), gone.format("utils._forkserver_preload_set")
    assert hasattr(SpecCluster, "_correct_state"), gone.format("SpecCluster._correct_state")
    assert hasattr(BatchedSend("1ms"), "interval"), gone.format("BatchedSend.interval")


def test_all_of_a_local_cluster_send_at_once() -> None:
    def of_scheduler(dask_scheduler) -> list[float]:
        return [s.interval for s in (*dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values())]

    def of_worker(dask_worker) -> float:
        return dask_worker.batched_stream.interval

    gone = "a stream of distributed waits, or is called otherwise now: mend tasks/executors/clusters/plugins.py"
    with connect(None, 1) as client:
        assert isinstance(client, Client)
        told = [*client.run_on_scheduler(of_scheduler), *client.run(of_worker).values()]
        assert [*told, client.scheduler_comm.interval] == [BATCHING_SECONDS] * 4, gone
