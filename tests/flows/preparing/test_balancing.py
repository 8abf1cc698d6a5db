"""Partitions sized by the measured speed of workers, one of which is really slow; and what is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from flows.config.recorded import resumed_config
from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from flows.evidence.forking import fork
from flows.preparing import balancing
from flows.stored import Run as TrainedRun
from storage.errors import ExperimentDiffers, ModelError, UsageError
from storage.runs.run import Run
from tasks.clusters.connecting import connect
from tasks.data.splits.table import find_split
from tasks.executors.graph import GraphExecutor

SLOW = """
import os, time
import torch
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def forward(self, inputs):
        time.sleep(0.03 if "SLOW_TEST_WORKER" in os.environ else 0)
        return self.layer(inputs.flatten(1))
def network():
    return Network()
def failing(outputs, targets):
    if outputs.requires_grad:
        raise ValueError("too hot")
    return outputs.mean()
def data(partition, partitions):
    return torch.zeros(8, 64), torch.zeros(8).long()
"""
PARTITIONS = 4


@pytest.fixture
def fields(own) -> dict[str, object]:
    return {"model": f"{own(SLOW)}:network", "partitions": PARTITIONS, "rounds": 2, "balance": "measured"}


@pytest.fixture
def executor(dask_processes, tmp_path: Path) -> Iterator[GraphExecutor]:
    """Two worker processes, one of which takes its time."""
    with connect(dask_processes(tmp_path, 2, SLOW_TEST_WORKER="1"), 2) as client:
        client.wait_for_workers(2)
        yield GraphExecutor(client)


@pytest.fixture
def unmeasured(monkeypatch) -> None:
    """Nothing can be measured any more."""
    monkeypatch.delattr(balancing, "batches_per_second")


def sizes(run: Run) -> list[int]:
    return [len(run.examples(partition)) for partition in range(PARTITIONS)]


def test_the_partitions_of_a_slow_worker_are_smaller_and_the_split_is_what_the_run_is(
    train, fields, executor, capsys, request
) -> None:
    slow = list(executor.each(partial(os.getenv, "SLOW_TEST_WORKER")).values()).index("1")
    run = train(executor, name="run", **fields)
    split = run.config["split"]
    line = r"partition sizes by measured speed, .*: tcp\S+ [\d.]+, tcp\S+ [\d.]+; split " + re.escape(split)
    assert re.search(line, capsys.readouterr().err)
    blocks = sizes(run)[:2], sizes(run)[2:]
    assert max(blocks[slow]) * 2 < min(blocks[1 - slow])
    weights = find_split(split).weights  # type: ignore[attr-defined]
    assert max(weights) == 1
    assert run.config["balance"] is None
    assert {record.weight for record in run.round(1).commit.updates.values()} == set(sizes(run))

    request.getfixturevalue("unmeasured")
    given = fields | {"split": split, "balance": None}
    alone = train(**given, name="alone")
    assert alone.digest == run.digest
    assert TrainedRun(run.address).replay("all").identical
    again = train(**fields | {"rounds": 3}, name="run")
    assert (again.done, again.digest) == (3, train(**given | {"rounds": 3}, name="whole").digest)
    assert resumed_config("run", None, True, {}).split == split
    assert fork("run@2", name="forked").split == split
    with pytest.raises(UsageError, match=f"split {split} is for 4 partitions, and there are 2"):
        resolve(fork("run@2", partitions=2, quorum=1))


def test_a_run_with_another_split_is_another_experiment(train, fields, unmeasured) -> None:
    train(**fields | {"split": "contiguous", "balance": None}, name="run")
    with pytest.raises(ExperimentDiffers, match="split contiguous -> iid"):
        train(**fields, name="run")


def test_in_one_process_the_split_stays_as_it_was(train, fields, capsys) -> None:
    run = train(**fields, name="run")
    assert run.config["split"] == "iid"
    assert re.search(r"a second: this process [\d.]+; split iid", capsys.readouterr().err)
    assert train(**fields | {"balance": None}, name="plain").digest == run.digest
    assert train(**fields, name="run").done == 2


def test_a_network_that_fails_while_it_is_measured_is_told_and_no_run_made(train, fields, own, tmp_path) -> None:
    with pytest.raises(ModelError, match="backprop fails with ValueError: too hot"):
        train(**fields | {"loss": f"{own(SLOW)}:failing"}, name="run")
    assert not (tmp_path / "runs/run.zarr").exists()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"split": "sizes:power"}, "balance sizes an iid split, and this is sizes:power; leave one of them out"),
        ({"data": "mine:data"}, "balance deals examples out, and the data give each partition its own"),
        ({"local_steps": 3}, "these maps take so many steps whatever the size; give local_epochs"),
        ({"algorithm": "fed_prox", "local_steps": 3}, "these maps take so many steps whatever the size"),
        ({"algorithm": "scaffold", "local_steps": 3}, "these maps take so many steps whatever the size"),
        ({"algorithm": "sync_sgd", "batch_size": 8}, "these maps take so many steps whatever the size"),
    ],
)
def test_what_cannot_be_balanced_is_refused_before_any_process(fields, own, other, says) -> None:
    other = {name: own(SLOW) + ":data" if name == "data" else value for name, value in other.items()}
    with pytest.raises(UsageError, match=says):
        resolve(TrainConfig(**fields | other))


@pytest.mark.parametrize("algorithm", ["sync_sgd", "fed_avg", "fed_prox", "scaffold"])
def test_what_passes_over_its_examples_can_be(fields, algorithm) -> None:
    assert resolve(TrainConfig(**fields | {"algorithm": algorithm})).config.balance == "measured"
