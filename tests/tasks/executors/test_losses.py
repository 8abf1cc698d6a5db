"""Workers that hang, die and are killed: real processes, real signals; what the user reads, and the same bits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from storage.errors import ClusterError
from tasks.clusters.connecting import connect
from tasks.executors.graph import GraphExecutor
from tasks.executors.inline import InlineExecutor

SOURCE = """
import os, signal, time
from pathlib import Path
import torch
from torch.nn.functional import cross_entropy

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20, 3, generator=generator)
    inputs[:, 0] = partition
    return inputs, (inputs[:, 1] > 0).long()

class Network(torch.nn.Linear):
    '''Does at partition 2 what a file says, once: it takes the file away.'''
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, inputs):
        if self.training and inputs[0, 0] == 2:
            for mark in sorted(Path(__file__).parent.glob("do-*")):
                deed = mark.read_text()
                if not mark.name.startswith("do-always"):
                    mark.unlink()
                exec(deed, globals())
        return super().forward(inputs)
"""
FIELDS = {"partitions": 4, "rounds": 4, "local_steps": 2, "batch_size": 5, "held_out": 0}


@pytest.fixture
def fields(own) -> dict[str, object]:
    path = own(SOURCE)
    return FIELDS | {"data": f"{path}:data", "model": f"{path}:Network"}


@pytest.fixture
def arm(tmp_path: Path):
    """Have something done in the map of partition 2, after a round."""

    def after(round: int, deed: str, name: str = "do-once"):
        def armed(commit) -> None:
            if commit.round == round:
                (tmp_path / name).write_text(deed)

        return armed

    return after


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "roundweave"]


STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("window", [1, 4])
def test_the_work_of_a_hung_worker_is_done_elsewhere_and_the_user_reads_it(
    train, fields, arm, caplog, window
) -> None:
    reference = train(**fields, name="reference")
    with connect(None, 2) as client:
        executor = GraphExecutor(client, worker_timeout=5)
        train(executor, 1, **fields | {"rounds": 1}, name="hung")
        arm(1, STOP)(reference.round(1).commit)
        run = train(executor, window, **fields, name="hung")
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(
        r"worker tcp://127\.0\.0\.1:\d+ has been silent for \d+ s and is given up; "
        r"mapped again in round 2: partition 2 to 3",
        line,
    )


def test_a_killed_worker_is_told_in_one_line(train, fields, arm, caplog) -> None:
    reference = train(**fields, name="reference")
    with connect(None, 2) as client:
        run = train(GraphExecutor(client), 1, arm(2, KILL), **fields, name="killed")
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(r"worker tcp://127\.0\.0\.1:\d+ is lost; mapped again in round 3: partition 2 to 3", line)


@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_a_map_that_hangs_is_named_while_it_hangs(train, fields, arm, caplog, executor) -> None:
    armed = arm(2, "time.sleep(7)")
    if executor == "inline":
        train(InlineExecutor(patience=2), 1, armed, **fields, name="hanging")
    else:
        with connect(None, 2) as client:
            train(GraphExecutor(client, worker_timeout=2), 1, armed, **fields, name="hanging")
    told = lines(caplog)
    assert [line.partition(" for ")[0] for line in told] == ["round 3: partition 2 has been mapping"] * 2
    assert all(re.search(r" for \d s, the others took 0\.\d+ s$", line) for line in told)


def test_the_partition_at_which_workers_die_is_named(train, fields, arm, caplog) -> None:
    armed = arm(1, KILL, "do-always")
    with (
        connect(None, 2) as client,
        pytest.raises(
            ClusterError, match=r"round 2 was lost 2 times \(workers died at partition 2: 6 workers died"
        ),
    ):
        train(GraphExecutor(client), 1, armed, **fields, name="deadly")


@contextmanager
def cluster(**options: object) -> Iterator[Client]:
    """A client of a foreign cluster of one worker, with Dask's own settings."""
    with (
        LocalCluster(1, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL", **options) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


def test_a_partition_that_takes_all_memory_is_named(train, fields, arm) -> None:
    """The nanny kills its worker at 95 % of the memory it may have."""
    armed = arm(1, "hog = bytearray(1 << 30); time.sleep(60)", "do-always")
    with (
        cluster(memory_limit="1GiB") as client,
        connect(client.scheduler.address, 1) as connected,
        pytest.raises(
            ClusterError, match=r"round 2 was lost 2 times \(workers died at partition 2: 4 workers died"
        ),
    ):
        train(GraphExecutor(connected), 1, armed, **fields, name="hungry")
