"""The engine and its committer: what ranks send, and which thread commits a round."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import Prepared, prepared
from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.compute.communicator import Alone
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.process_group.messages import Message, read_message
from roundweave.tasks.rounds import engine
from roundweave.tasks.rounds.engine import BlockData, Committer, Engine
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import Computed
from roundweave.tasks.rounds.persistence.mapping import map_and_persist
from roundweave.tasks.rounds.persistence.recomputing import read_outcome
from roundweave.tasks.rounds.steps import Outcome

OWN_MEAN = """
import roundweave as rw
from dataclasses import dataclass

@dataclass(frozen=True)
class Total(rw.Mean):
    weighted: bool = False

def algorithm():
    return rw.Algorithm(rw.Gradient(), Total(), rw.Sgd(0.1))
"""


class Listening(Alone):
    """A group of one whose values pass as they would between processes; `sizes` are the bytes of each message."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def all_gather(self, value: Any) -> list[Any]:
        message = Message.of(value)
        self.sizes.append(message.size)
        memory = memoryview(bytearray(message.size))
        message.write(memory)
        return [read_message(memory)]


def run_in(root: Path, name: str = "run", **fields: Any) -> Any:
    small = {"model": "logistic", "partitions": 2, "rounds": 6, "evaluate_every": 6}
    config = TrainConfig(executor="inline", root=root, name=name, **small | fields)
    return prepared(resolve(config), InlineExecutor())


def committed(run: Prepared, committer: Committer, group: Any = None) -> list[str]:
    """The digests of all rounds, as the committer commits them."""
    job = run.job
    rounds = Engine(job, BlockData(0), lambda *given: map_and_persist(job, *given), group or Alone())
    return [commit.state for commit in committer.commits(rounds.rounds(read_outcome(job, 0), 6))]


def test_what_ranks_send_each_other_has_no_source_of_the_users(tmp_path: Path) -> None:
    sizes = []
    for name, comment in (("short", ""), ("long", "# " + 40_000 * "x" + "\n")):
        (tmp_path / f"{name}.py").write_text(OWN_MEAN + comment)
        group = Listening()
        with run_in(tmp_path, name, algorithm=f"{tmp_path}/{name}.py:algorithm") as run:
            assert run.job.work.code
            assert len(committed(run, Committer(run.job, held=6), group)) == 6
        sizes.append(max(group.sizes))
    assert sizes[1] < sizes[0] + 1000


def test_short_rounds_are_committed_by_the_thread_that_computes_them(tmp_path: Path, monkeypatch) -> None:
    commit, threads = engine.commit_round, list[str]()

    def noted(*given: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        return commit(*given, **named)

    monkeypatch.setattr(engine, "commit_round", noted)
    digests = []
    for seconds in (0.0, 3600.0):
        monkeypatch.setattr(engine, "SHORT_SECONDS", seconds)
        with run_in(tmp_path, f"run{seconds:.0f}") as run:
            digests.append(committed(run, Committer(run.job, held=6)))
    here = threading.current_thread().name
    assert [name == here for name in threads] == [False] * 6 + [True] * 6
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 6


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("short", [0.0, 3600.0])
@pytest.mark.parametrize("at", ["map", "commit"])
def test_all_commits_before_an_error_are_yielded(
    tmp_path: Path, monkeypatch, ahead: bool, short: float, at
) -> None:
    commit, done = engine.commit_round, list[int]()

    def mapped(outcome: Outcome, *given: Any) -> Any:
        if at == "map" and outcome.state.round == 3:
            raise RoundFailed("too hot")
        return map_and_persist(job, outcome, *given)

    def committed(job: Job, computed: Computed, *given: Any, **named: Any) -> Commit:
        if at == "commit" and computed.outcome.state.round == 4:
            raise RoundFailed("too hot")
        return commit(job, computed, *given, **named)

    monkeypatch.setattr(engine, "SHORT_SECONDS", short)
    monkeypatch.setattr(engine, "commit_round", committed)
    with run_in(tmp_path) as run:
        job = run.job
        rounds = Engine(job, BlockData(0), mapped).rounds(read_outcome(job, 0), 6)
        with pytest.raises(RoundFailed, match="too hot"):
            for each in Committer(job, ahead=ahead).commits(rounds):
                done.append(each.round)
    assert done == [1, 2, 3]


def test_a_round_leaves_the_generators_of_its_caller(tmp_path: Path) -> None:
    from roundweave.tasks.numerics.pinning import generators

    def states() -> str:
        return repr([each.tolist() if hasattr(each, "tolist") else each for each in generators()])

    with run_in(tmp_path) as run:
        job = run.job
        rounds = Engine(job, BlockData(0), lambda *given: map_and_persist(job, *given))
        before = states()
        for _ in rounds.rounds(read_outcome(job, 0), 3):
            assert states() == before
