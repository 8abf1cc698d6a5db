"""An experiment whose maps do what files beside its code say: kill, stop or fail the process; and what is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from roundweave.flows.config.resolving import resolve, work_of
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.stored import Run
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import Attempt, Job
from tests.patience import PATIENCE

DATA = """
import os, signal, time
from pathlib import Path
import torch

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20, 3, generator=generator)
    inputs[:, 0] = partition
    return inputs, (inputs[:, 1] > 0).long()
"""
SOURCE = f"""{DATA}
class Network(torch.nn.Linear):
    '''Does in the map of a partition what do-PARTITION-ROUND[-always] says, once `there` has that round.'''
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, inputs):
        if self.training:
            here = Path(__file__).parent
            for mark in sorted(here.glob(f"do-{{int(inputs[0, 0])}}-*")):
                round = mark.name.split("-")[2]
                if round == "0" or (here / f"runs/there.zarr/commits/{{round}}.json").exists():
                    deed = mark.read_text()
                    if not mark.name.endswith("always"):
                        mark.unlink()
                    exec(deed, globals())
        return super().forward(inputs)
"""
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
MEET = """
met = Path(__file__).with_name("{name}")
met.mkdir(exist_ok=True)
(met / str(os.getpid())).touch()
while len([*met.iterdir()]) < 2:
    time.sleep(0.05)
time.sleep(0.1)  # else Dask takes the maps for too short to give some to another worker
"""
"""In the first map of a process: wait until another one maps, too. Those of one `name` meet once."""

Do = Callable[..., None]
"""Has something done in a map; see the fixture `do`."""


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the user read."""
    return [record.getMessage() for record in caplog.records if record.name == "roundweave"]


def until(happens: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def foreign(workers: int = 1, threads: int = 1, **options: object) -> Iterator[Client]:
    """A client of a cluster that is not ours, where a task may see two workers die."""
    few = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    options |= {"n_workers": workers, "threads_per_worker": threads, "dashboard_address": ":0"}
    with (
        few,
        LocalCluster(silence_logs="CRITICAL", **options) as local,
        connect(local.scheduler_address, 1) as client,
    ):
        yield client


def replay_job(run: Run, fields: dict[str, object], tmp_path: Path) -> Job:
    """What an executor is given to replay rounds of a run."""
    config = TrainConfig(**fields, root=tmp_path / "runs")
    work, _ = work_of(resolve(config), InlineExecutor())
    return Job(work, Attempt(run.address, "reader", epoch=0, rounds=4))
