"""An experiment whose maps do what files beside its code say: kill, stop or fail the process; and what is told."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.flows.stored import Run
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.rounds.job import Attempt, Job
from tests.patience import PATIENCE

DATA = """
import os, signal, time
from pathlib import Path
import torch

def obey(at, **names):
    '''Do what the files AT-ROUND[-always] say, once the run `there` has that round.'''
    here = Path(__file__).parent
    for mark in sorted(here.glob(f"{at}-*")):
        round = mark.name.removeprefix(at).split("-")[1]
        if round == "0" or (here / f"runs/there.zarr/commits/{round}.json").exists():
            try:
                deed = mark.read_text()
                if not mark.name.endswith("always"):
                    mark.unlink()
            except FileNotFoundError:  # another process was first
                continue
            exec(deed, globals() | {"deed": deed, **names})

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20, 3, generator=generator)
    labels = (inputs[:, 1] > 0).long()
    inputs[:, 0] = partition
    obey(f"data-{partition}", inputs=inputs)
    return inputs, labels
"""
SOURCE = f"""{DATA}
class Network(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, inputs):
        if self.training:
            obey(f"map-{{int(inputs[0, 0])}}")
        return super().forward(inputs)
"""
FAILING = """
import sys
from torch.nn.functional import cross_entropy
def deeper():
    return deeper()
def stop():
    raise KeyboardInterrupt
def loss(outputs, targets):
    if outputs.requires_grad == {training} and len(outputs) > 8:  # eight are tried before round 1
        {how}
    return cross_entropy(outputs, targets)
"""
"""A loss that ends in training, or in scoring."""
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
HOT = "raise ValueError('too hot in process ' + str(os.getpid()))"
NAN = "inputs[:, 2] = torch.nan"
"""Of the data of a partition."""
MEET = """
met = Path(__file__).with_name("{name}")
met.mkdir(exist_ok=True)
(met / str(os.getpid())).touch()
while len([*met.iterdir()]) < 2:
    time.sleep(0.05)
time.sleep(0.1)  # else Dask takes the maps for too short to give some to another worker
"""
"""In the first map of a process: wait until another one maps, too. Those of one `name` meet once."""


def experiment(own: Callable[..., str], source: str = SOURCE, **named: str) -> dict[str, object]:
    """The fields of a configuration whose data, and what is `named`, are of a source; see the fixture `own`."""
    path = own(source)
    found = {field: f"{path}:{name}" for field, name in ({"data": "data", "model": "Network"} | named).items()}
    return found | {"partitions": 4, "rounds": 4, "local_steps": 2, "batch_size": 5, "held_out": 0}


def have_done(
    folder: Path, deed: str, partitions: int | Sequence[int], round: int = 0, always: bool = False, at: str = "map"
) -> None:
    """Have something done in maps of partitions, or `at` their data or another moment; see `obey`."""
    for partition in [partitions] if isinstance(partitions, int) else partitions:
        (folder / f"{at}-{partition}-{round}{'-always' if always else ''}").write_text(deed)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the user read."""
    return [record.getMessage() for record in caplog.records if record.name == "roundweave"]


def identities(run: Run) -> list[tuple[object, ...]]:
    """What the rounds of a run are, whoever made them."""
    return [run.round(round).commit.identity() for round in range(run.done + 1)]


def executors(run: Run) -> list[str]:
    """What ran each round."""
    return [run.round(round).commit.executor for round in range(1, run.done + 1)]


def refused(run: Run) -> dict[int, list[int]]:
    """The partitions that rounds have refused."""
    return {n: sorted(run.round(n).refused) for n in range(1, run.done + 1) if run.round(n).refused}


def until(happens: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def idle(client: Client) -> bool:
    """Whether no worker of a cluster is at work."""
    return not any(client.processing().values())


def beside(workers: int) -> Callable[[Client], Iterator[Client]]:
    """A fixture: so many workers of a module's own, beside the cluster that tests share, and as quickly begun."""

    @pytest.fixture(scope="module")
    def client(cluster: Client) -> Iterator[Client]:
        with connect(None, workers) as client:
            yield client

    return client


@contextmanager
def foreign(workers: int = 1, threads: int = 1, **options: object) -> Iterator[Client]:
    """A client of a cluster that is not ours, where a task may see two workers die."""
    few = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    options = PLACE | {"n_workers": workers, "threads_per_worker": threads} | options
    with few, LocalCluster(**options) as local, connect(local.scheduler_address, 1) as client:
        yield client


PLACE = {"dashboard_address": ":0", "silence_logs": "CRITICAL"}
"""How a cluster of Dask is quiet, beside others."""


class Bare:
    """A scheduler of a cluster, and worker processes of it that nobody starts again."""

    def __init__(self, local: LocalCluster, folder: Path) -> None:
        self.local, self.folder = local, folder
        self.address = local.scheduler_address
        self.workers: list[subprocess.Popen[bytes]] = []

    def begin(self, *options: str, within: Callable[[list[str]], list[str]] = list) -> None:
        """Start a worker, whose command line may be put into another one, and wait for it."""
        line = [sys.executable, "-m", "dask", "worker", self.address, "--no-nanny", "--nthreads", "1"]
        line = within([*line, "--local-directory", str(self.folder), *options])
        self.workers.append(subprocess.Popen(line, stderr=subprocess.DEVNULL))
        until(lambda: len(self.local.scheduler.workers) == len(self.workers))


@contextmanager
def bare(folder: Path, workers: int = 0, **options: object) -> Iterator[Bare]:
    """A cluster whose workers nobody starts again."""
    with LocalCluster(n_workers=0, **PLACE, **options) as local:
        cluster = Bare(local, folder)
        try:
            for _ in range(workers):
                cluster.begin()
            yield cluster
        finally:
            for worker in cluster.workers:
                worker.kill()
                worker.wait()


def replay_job(run: Run, fields: dict[str, object], tmp_path: Path) -> Job:
    """What an executor is given to replay rounds of a run."""
    config = TrainConfig(**fields, root=tmp_path / "runs")
    work = describe(plan(config), gather_here).work
    return Job(work, Attempt(run.address, "reader", epoch=0, rounds=4))
