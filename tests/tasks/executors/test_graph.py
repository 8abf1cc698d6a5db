"""On workers of a cluster, by tasks or by ranks that stay: carry, windows, errors, classes of the user's own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import RoundFailed
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.pool import WorkerPool
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.own_code.code import find_code
from roundweave.tasks.rounds.job import Attempt, Job
from roundweave.tasks.rounds.steps import BlockResult
from tests.counting import counting
from tests.tasks.rounds.test_steps import FAILING

ROUNDS = 7


@pytest.fixture(params=[GraphExecutor, RanksExecutor])
def kind(request: pytest.FixtureRequest) -> type[GraphExecutor]:
    return request.param


@pytest.fixture
def fields(own) -> dict[str, object]:
    return {**counting(own), "partitions": 3, "rounds": ROUNDS}


def digests(run: Run) -> dict[int, object]:
    found = {}
    for number in range(1, ROUNDS + 1):
        commit = run.round(number).commit
        found[number] = commit.state, {p: update.digest for p, update in commit.updates.items()}, commit.carry_from
    return found


def test_what_a_partition_carries_is_what_it_brought_back_when_it_was_last_accepted(train, fields) -> None:
    run = train(**fields)
    for number in range(1, ROUNDS + 1):
        round = run.round(number)
        refused = number in (2, 3)
        assert list(round.refused) == ([1] if refused else [])
        assert round.commit.carry_from == {0: number, 1: 1 if refused else number, 2: number}
        for partition in round.commit.accepted:
            counted = number - 2 if partition == 1 and number > 3 else number
            update = round.update(partition)
            assert update.carry["memory"]["float32"].tolist() == [counted] * 37
            scaled = update.extras["control"]["float32"] / counted
            assert torch.equal(update.direction["float32"], scaled)


def test_there_are_no_more_blocks_than_workers_or_shards_of_partitions(client) -> None:
    def blocks(partitions: int, shard: int = 1, **options: object) -> int:
        split = SimpleNamespace(partitions=partitions)
        dealt = SimpleNamespace(taking_part=partitions, split=split)
        work = SimpleNamespace(partitions=dealt, drawn_from_present=False)
        return (
            WorkerPool(client, Setting()).spread(Job(work, Attempt("", "", 1, 1), shard=shard), **options).blocks
        )

    assert (blocks(5), blocks(1), blocks(5, ranks=2), blocks(5, one_by_one=True)) == (2, 1, 1, 5)
    assert (blocks(5, shard=4), blocks(4, shard=4), blocks(9, shard=4, one_by_one=True)) == (2, 1, 3)


@pytest.mark.parametrize("window", [1, 3])
def test_two_workers_carry_the_same_bits_in_any_window(train, fields, client, window, kind) -> None:
    reference = train(**fields, name="reference")
    assert digests(train(kind(client), window, **fields, name="graph")) == digests(reference)


@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_run_resumed_with_other_executors_carries_on(train, fields, client, window, kind) -> None:
    reference = train(**fields, name="reference")
    for rounds, executor in ((2, None), (5, kind(client)), (ROUNDS, None)):
        train(executor, window, **fields | {"rounds": rounds}, name="resumed")
    assert digests(open_run("resumed")) == digests(reference)
    assert len({reference.round(n).commit.token for n in range(1, ROUNDS + 1)}) == 1
    assert len({open_run("resumed").round(n).commit.token for n in range(1, ROUNDS + 1)}) == 3


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("sys.exit(3)", "partition 0: its map failed with SystemExit: 3"),
        ("stop()", "the map of partition [01] failed with KeyboardInterrupt"),
        ("deeper()", "partition 0: its map failed with RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_what_would_end_a_worker_fails_the_round_and_no_worker_dies(train, own, client, how, told, kind) -> None:
    workers = client.nthreads()
    path = own(FAILING.format(how=how, training=True))
    with pytest.raises(RoundFailed, match=rf"round 1: .*{told}"):
        train(kind(client), 1, model="logistic", rounds=1, partitions=2, loss=f"{path}:loss")
    assert client.nthreads() == workers


REDUCE = """
from dataclasses import dataclass
import roundweave as rw
@dataclass(frozen=True)
class Kept:
    updates: tuple
@dataclass(frozen=True)
class First(rw.Reduce):
    def join(self, left, right):
        return Kept((*listed(left), *listed(right)))
    def finish(self, state, node):
        return listed(node)[0]
def listed(node):
    return node.updates if isinstance(node, Kept) else (node,)
def algorithm():
    return rw.Algorithm(rw.LocalSteps(local_steps=1), First(), rw.Sgd())
"""


def test_classes_of_ones_own_file_travel_to_workers_that_know_nothing_of_it(
    train, own, dask_processes, tmp_path
) -> None:
    """The workers began elsewhere, and know of the file only by what they are sent."""
    fields = {"algorithm": f"{own(REDUCE)}:algorithm", "model": "logistic", "partitions": 5, "rounds": 4}
    reference = train(**fields, name="here")
    with connect(dask_processes(tmp_path), 2) as client:
        for kind in (GraphExecutor, RanksExecutor):
            run = train(kind(client), 2, **fields, name=kind.__name__)
            assert run.digest == reference.digest


def test_what_a_block_gives_is_of_ones_own_classes_in_a_process_that_has_nothing_else(own) -> None:
    """A worker that just joined may be sent the results of maps before it is sent the work."""
    code = find_code(f"{own(REDUCE)}:algorithm")
    kept = code.load()().reduce.join("left", "right")
    content = pickle.dumps(BlockResult({(0, 2): kept}, {}, (code,)))
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer).nodes[0, 2].updates)"
    done = subprocess.run([sys.executable, "-c", script], input=content, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "('left', 'right')"


def test_classes_of_a_notebook_travel_to_workers(train, client, kind) -> None:
    notebook: dict[str, object] = {"__name__": "__main__"}
    exec(REDUCE, notebook)
    fields = {"algorithm": notebook["algorithm"], "model": "logistic", "partitions": 5, "rounds": 2}
    reference = train(**fields, name="here")
    run = train(kind(client), 2, **fields, name="there")
    assert run.digest == reference.digest
