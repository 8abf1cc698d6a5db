"""Folds by tasks between maps and the reduce: the same bits, also where a worker dies at one."""

from __future__ import annotations

import pytest

from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.rounds.evidence.results import RoundResult
from tests.rows import but_first
from tests.tasks.executors.deeds import DATA, KILL, beside, experiment, lines, replay_job

SOURCE = f"""{DATA}
from dataclasses import dataclass
import roundweave as rw

def model():
    return torch.nn.Linear(3, 2)

@dataclass(frozen=True)
class Watched(rw.Mean):
    def join(self, left, right):
        obey("join-0")
        return super().join(left, right)

def algorithm():
    return rw.Algorithm(rw.LocalSteps(local_steps=2, batch_size=5), Watched(), rw.Sgd())
"""


client = beside(5)
"""So many that each block is of one partition, and folds join first."""


@pytest.fixture
def fields(own) -> dict[str, object]:
    fields = experiment(own, SOURCE, model="model", algorithm="algorithm") | {"partitions": 5}
    return {name: fields[name] for name in fields.keys() - {"local_steps", "batch_size"}}


@pytest.fixture
def folds(client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs each fold has that the client submits."""
    submitted, get = list[int](), client.get

    def counting(graph, *arguments, **options):
        submitted.extend(len(task[-1]) for key, task in graph.items() if key[0] == "fold")
        return get(graph, *arguments, **options)

    monkeypatch.setattr(client, "get", counting)
    return submitted


@pytest.mark.parametrize(("fan_in", "partitions"), but_first([(2, 12)], [(4, 5)]))
def test_the_bits_of_any_fan_in_are_those_of_one_process(equal, fields, client, folds, fan_in, partitions) -> None:
    equal(GraphExecutor(client, fan_in=fan_in), 2, **fields | {"partitions": partitions, "rounds": 2})
    assert folds and max(folds) <= fan_in


@pytest.mark.parametrize("options", but_first([{"reduce": "median"}], [{"algorithm": "matched"}]))
def test_a_reduce_that_gathers_receives_all_at_once_and_gives_the_same_bits(equal, client, folds, options) -> None:
    fields = {"model": "mlp", "model_options": {"hidden": 16}, "partitions": 5, "rounds": 2, "local_steps": 2}
    equal(GraphExecutor(client, fan_in=2), 2, **fields | options)
    assert folds == []


@pytest.mark.thorough
@pytest.mark.parametrize("window", [1, 3])
def test_a_worker_killed_at_a_fold_costs_no_bit(equal, fields, client, do, tmp_path, caplog, window) -> None:
    """At its first join."""
    do(KILL, 0, 1, at="join")
    equal(GraphExecutor(client, fan_in=2), window, **fields | {"rounds": 7})
    assert not [*tmp_path.glob("join-*")]
    assert "is lost" in lines(caplog)[0]


def test_replays_fold_too(train, fields, client, folds, tmp_path) -> None:
    fields |= {"partitions": 4}
    job = replay_job(train(**fields, name="run"), fields, tmp_path)
    results = list(GraphExecutor(client, fan_in=2).replay(job, [1, 2, 3, 4]))
    assert results == [RoundResult(round) for round in (1, 2, 3, 4)]
    assert folds == [2, 2] * 4
