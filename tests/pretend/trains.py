"""Trains on the processor and on the pretended device, and prints what came of it: ``trains ROOT JSON``.

It is a process of its own, since what it makes known to torch cannot be taken back. The JSON is a list of objects:
an executor, and fields of a configuration.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import tests.pretend  # noqa: F401 - makes the device known
from roundweave.flows.evidence.replaying import ReplayConfig, replay
from roundweave.storage.errors import RoundweaveError
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.training import trained


@contextmanager
def cluster(workers: int) -> Iterator[Client]:
    """Workers that know the device."""
    options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    with (
        LocalCluster(n_workers=workers, preload=["tests.pretend"], **options) as local,
        connect(local.scheduler_address, workers) as client,
    ):
        yield client


def train(root: Path, executor: Executor, fields: dict[str, Any]) -> dict[str, Any]:
    """The digest, losses and replay of a run; or the line with which it is refused."""
    try:
        run = trained(root, executor, **fields)
        replayed = replay(ReplayConfig(run=str(run.path), root=str(root), executor="inline"))
    except RoundweaveError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    losses = run.history()["loss"].dropna().tolist()
    return {"digest": run.digest, "losses": losses, "replays": not (replayed.differing or replayed.lacking)}


def main(root: Path, asked: list[tuple[str, dict[str, Any]]]) -> None:
    executors: dict[str, Executor] = {"inline": InlineExecutor()}
    with ExitStack() as stack:
        if others := {executor for executor, _ in asked} - {*executors}:
            client = stack.enter_context(cluster(2 if "ranks" in others else 1))
            executors |= {"graph": GraphExecutor(client), "ranks": RanksExecutor(client)}
        for executor, fields in asked:
            print(json.dumps(train(root, executors[executor], fields)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
