"""Folds by tasks between maps and the reduce: the same bits, also where a worker dies at one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client

from roundweave.flows.stored import Run
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.rounds.evidence.results import RoundResult
from tests.tasks.executors.deeds import DATA, lines, replay_job

SOURCE = f"""{DATA}
from dataclasses import dataclass
import roundweave as rw

def model():
    return torch.nn.Linear(3, 2)

@dataclass(frozen=True)
class Watched(rw.Mean):
    '''A mean at whose join a process ends where a file says so, once.'''
    def join(self, left, right):
        for mark in Path(__file__).parent.glob("kill-*"):
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().join(left, right)

def algorithm():
    return rw.Algorithm(rw.LocalSteps(local_steps=2, batch_size=5), Watched(), rw.Sgd())
"""
ROUNDS = 4


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with connect(None, 5) as client:
        yield client


@pytest.fixture
def fields(own) -> dict[str, object]:
    path = own(SOURCE)
    named = {"data": f"{path}:data", "model": f"{path}:model", "algorithm": f"{path}:algorithm"}
    return named | {"partitions": 5, "rounds": ROUNDS, "held_out": 0}


def digests(run: Run) -> dict[int, object]:
    commits = {number: run.round(number).commit for number in range(1, ROUNDS + 1)}
    return {n: (c.state, [(p, u.digest, u.refused) for p, u in c.updates.items()]) for n, c in commits.items()}


@pytest.fixture
def folds(client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs each fold has that the client submits."""
    submitted, get = list[int](), client.get

    def counting(graph, *arguments, **options):
        submitted.extend(len(task[-1]) for key, task in graph.items() if key[0] == "fold")
        return get(graph, *arguments, **options)

    monkeypatch.setattr(client, "get", counting)
    return submitted


@pytest.mark.parametrize(("fan_in", "partitions"), [(2, 12), (4, 5)])
def test_the_bits_of_any_fan_in_are_those_of_one_process(train, fields, client, folds, fan_in, partitions) -> None:
    fields |= {"partitions": partitions}
    reference = train(**fields, name="reference")
    run = train(GraphExecutor(client, fan_in=fan_in), 2, **fields, name="folded")
    assert digests(run) == digests(reference)
    assert folds and max(folds) <= fan_in


@pytest.mark.parametrize("options", [{"reduce": "median"}, {"algorithm": "matched"}])
def test_a_reduce_that_gathers_receives_all_at_once_and_gives_the_same_bits(train, client, folds, options) -> None:
    fields = {"model": "mlp", "partitions": 5, "rounds": ROUNDS, "local_steps": 2} | options
    reference = train(**fields, name="reference")
    run = train(GraphExecutor(client, fan_in=2), 2, **fields, name="gathered")
    assert digests(run) == digests(reference)
    assert folds == []


@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_worker_that_is_killed_at_a_fold_costs_no_bit(train, fields, tmp_path, caplog, window) -> None:
    """Each block is of one partition, so it is at a fold that the first updates are joined."""
    reference = train(**fields, name="reference")

    def arm(commit) -> None:
        if commit.round == 1:
            (tmp_path / "kill-once").touch()

    with connect(None, 5) as client:
        executor = GraphExecutor(client, fan_in=2)
        train(executor, 1, arm, **fields | {"rounds": 1}, name="killed")
        run = train(executor, window, **fields, name="killed")
    assert digests(run) == digests(reference)
    assert not (tmp_path / "kill-once").exists()
    assert "is lost" in lines(caplog)[0]


def test_replays_fold_too(train, fields, client, folds, tmp_path) -> None:
    fields |= {"partitions": 4}
    job = replay_job(train(**fields, name="run"), fields, tmp_path)
    results = list(GraphExecutor(client, fan_in=2).replay(job, [1, 2, 3, 4]))
    assert results == [RoundResult(round) for round in (1, 2, 3, 4)]
    assert folds == [2, 2] * 4
