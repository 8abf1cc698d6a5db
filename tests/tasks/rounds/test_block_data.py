"""The data of a block: a cohort has the examples of its round, and the next ones are loaded beside the maps."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from roundweave import Dataset, Examples, Partitions
from roundweave.flows.plugins.cohort.sampler import Cohort
from roundweave.storage.errors import DataError
from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.rounds import engine
from roundweave.tasks.rounds.engine import BlockData
from roundweave.tasks.rounds.job import Attempt, Job, Work
from roundweave.tasks.rounds.persistence.mapping import load_block

THREE = Cohort(3)
OBJECTIVE = Objective(ModelSpec("mlp", (1,), 2, "float32", 0), "cross_entropy", ())


@dataclass(frozen=True)
class Numbered:
    """Forty examples with their numbers as inputs; all at once, or the same to each partition."""

    partitioned: bool = False

    def load(self, partition: int, partitions: int) -> Dataset:
        return Dataset(Examples(torch.arange(40.0)[:, None], torch.arange(40) % 2))


def job(resplit_every: int | None = None, sampler: Cohort | None = THREE, **source: Any) -> Job:
    """A job of four rounds, each with three of ten partitions."""
    partitions = Partitions(Numbered(**source), Split(10, resplit_every=resplit_every), sampler=sampler)
    work = Work(OBJECTIVE, ALGORITHMS["fed_avg"].build({}), partitions, seed=0)
    return Job(work, Attempt("nowhere", "token", 0, rounds=4))


@dataclass
class Loads:
    """Loads as the engine does, without a store; it notes the rounds that were asked for, here and in a thread."""

    here: list[int] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)
    failing: int = 0

    def __call__(self, job: Job, round: int, block: int) -> Any:
        main = threading.current_thread() is threading.main_thread()
        (self.here if main else self.ahead).append(round)
        self.began.set()
        if round == self.failing:
            raise DataError(f"round {round} cannot be read")
        return load_block(job, round, block)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    noted = Loads()
    monkeypatch.setattr(engine, "load_block", noted)
    monkeypatch.setattr(engine, "load_and_persist", noted)
    return noted


def numbers(examples: Any) -> dict[int, list[float]]:
    """The inputs of each partition."""
    return {partition: each.train.inputs.flatten().tolist() for partition, each in examples.items()}


def test_the_next_cohort_is_loaded_beside_the_maps_and_each_is_that_of_its_round(loads: Loads) -> None:
    this, data = job(), BlockData(0)
    for round in range(1, 5):
        loads.began.clear()
        asked = data(this, round, loads)
        assert numbers(asked) == numbers(load_block(this, round, 0))
        assert [*asked] == [*this.work.asks(round)]
        assert data(this, round, loads) is asked
        assert round == 4 or loads.began.wait(60)  # nobody has asked for the next round yet
    assert (loads.here, loads.ahead) == ([1], [2, 3, 4])


def test_an_error_of_the_next_cohort_is_raised_in_its_own_round(loads: Loads) -> None:
    this, data, loads.failing = job(), BlockData(0), 2
    assert data(this, 1, loads)
    for _ in range(2):
        with pytest.raises(DataError, match="round 2 cannot be read"):
            data(this, 2, loads)


@pytest.mark.parametrize(
    ("how", "here"),
    [
        ({"partitioned": True}, [1, 2, 3, 4]),  # to load one may call the user's code, which may draw
        ({"resplit_every": 1}, [1, 2, 3, 4]),  # its split is stored when it is loaded
        ({"resplit_every": 2}, [1, 3]),
        ({"sampler": None}, [1]),
        ({"sampler": Cohort(3, present=True)}, [1]),
    ],
)
def test_nothing_else_is_loaded_ahead(loads: Loads, how: dict[str, Any], here: list[int]) -> None:
    this, data = job(**how), BlockData(0)
    asked = [numbers(data(this, round, loads)) for round in range(1, 5)]
    assert asked == [numbers(load_block(this, round, 0)) for round in range(1, 5)]
    assert loads.here == here
    assert loads.ahead == [round for round in (2, 4) if how.get("resplit_every") == 2]
