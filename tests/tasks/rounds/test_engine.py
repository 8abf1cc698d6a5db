"""The engine and its committer: what is yielded before an error, and what a round leaves as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds import engine
from roundweave.tasks.rounds.engine import BlockData, Committer, Engine
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import Computed
from roundweave.tasks.rounds.persistence.mapping import map_and_persist
from roundweave.tasks.rounds.persistence.outcomes import read_outcome
from roundweave.tasks.rounds.steps import Outcome
from tests.rows import but_first


def run_in(root: Path, name: str = "run", **fields: Any) -> Any:
    small = {"model": "logistic", "partitions": 2, "rounds": 6, "evaluate_every": 6}
    config = TrainConfig(executor="inline", root=root, name=name, **small | fields)
    return prepare(plan(config), InlineExecutor())


FIRST = [("map", 0.0, True), ("commit", 0.0, True), ("commit", 3600.0, False)]


@pytest.mark.parametrize(
    ("at", "short", "ahead"), but_first(FIRST, ["map", "commit"], [0.0, 3600.0], [True, False])
)
def test_all_commits_before_an_error_are_yielded(tmp_path: Path, monkeypatch, ahead, short, at) -> None:
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
