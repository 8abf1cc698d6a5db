"""A sampler of the user's says whom each round asks; it may see the rounds before. Replays go by the record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.rounds import train_rounds
from roundweave.storage.errors import PluginFailed, UsageError
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar
import roundweave as rw

@dataclass(frozen=True)
class Lowest(rw.Sampler):
    '''Those that were asked the longest ago, and of these those of the lowest numbers.'''
    size: int
    sees: ClassVar[bool] = True

    def draw(self, seed, round, sizes, present=None, before=None):
        last = {p: commit.round for commit in before for p in commit.updates}
        return sorted(range(len(sizes)), key=lambda p: (last.get(p, 0), p))[: self.size]

@dataclass(frozen=True)
class Turns(rw.Sampler):
    '''Two in turn, by the number of the round.'''
    size: int
    def draw(self, seed, round, sizes, present=None, before=None):
        assert before is None
        return [(round + each) % len(sizes) for each in range(self.size)]

class Longest(rw.Plugin):
    decides = True
    most: int
    def plan(self, plan):
        return plan.fill("most", sampler=Lowest(self.most))

class InTurn(rw.Plugin):
    decides = True
    def plan(self, plan):
        return plan.fill("alternating", sampler=Turns(2))
"""
FIELDS = {"partitions": 5, "rounds": 4, "local_steps": 2, "window": 3}
ASKED = {"Longest": [[0, 1], [2, 3], [0, 4], [1, 2]], "InTurn": [[1, 2], [2, 3], [3, 4], [0, 4]]}


@pytest.fixture
def config(own, tmp_path: Path):
    """A configuration with one of the plugins."""

    def made(sampler: str, **fields: object) -> rw.TrainConfig:
        options = {"most": 2} if sampler == "Longest" else {}
        plugin = {"name": f"{own(SOURCE, 'samplers')}:{sampler}", **options}
        return rw.TrainConfig(**FIELDS | {"root": tmp_path / "runs", "plugins": [plugin]} | fields)

    return made


@pytest.mark.parametrize("sampler", ASKED)
def test_whom_a_round_asks_does_not_depend_on_the_executor_and_is_replayed(config, client, sampler: str) -> None:
    runs = []
    for kind in ("inline", "graph"):
        executor = {"graph": GraphExecutor, "ranks": RanksExecutor}.get(kind, lambda _: InlineExecutor())(client)
        runs.append(train_rounds(plan(config(sampler, executor=kind, name=kind)), None, executor))
    for run in runs:
        assert [sorted(run.round(number).commit.updates) for number in range(1, 5)] == ASKED[sampler]
        assert run.replay("all").identical
        assert run.verify().sound
    assert len({run.digest for run in runs}) == 1
    again = plan(config(sampler, executor="inline", name="inline", rounds=5))
    resumed = train_rounds(again, None, InlineExecutor())
    assert sorted(resumed.round(5).commit.updates) == {"Longest": [0, 3], "InTurn": [0, 1]}[sampler]
    (kept,) = resumed.recombine(2, without=ASKED[sampler][1][:1]).rounds
    assert kept.score != kept.original


def test_what_has_no_place_for_a_sampler_is_refused(config) -> None:
    with pytest.raises(UsageError, match=r"^most and cohort both decide the sampler; leave one of them out$"):
        plan(config("Longest", cohort=2))
    with pytest.raises(UsageError, match=r"^alternating draws for a round, and a parameter server has none"):
        plan(config("InTurn", algorithm="fed_buff", buffer=2, executor="inline"))
    with pytest.raises(
        UsageError, match=r"^alternating and topology both decide the sampler; leave one of them out$"
    ):
        plan(config("InTurn", topology="ring"))
    with pytest.raises(UsageError, match=r"^quorum 3 is more than the 2 partitions of a round$"):
        plan(config("InTurn", quorum=3))


DRAWS = """
from dataclasses import dataclass
import numpy
import roundweave as rw

@dataclass(frozen=True)
class Draws(rw.Sampler):
    size: int = 2
    def draw(self, seed, round, sizes, present=None, before=None):
        return {draw}

class Drawn(rw.Plugin):
    decides = True
    def plan(self, plan):
        return plan.fill("drawn", sampler={sampler})
"""


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (draw, f"sampler Draws drew {drew} for round 1; it must draw up to 2 numbers from 0 to 4, each once")
        for draw, drew in {"[1, 9]": "[1, 9]", "[0, -1]": "[-1, 0]", "[1, 1]": "[1, 1]", "[]": "[]"}.items()
    ]
    + [
        ("None", "sampler Draws drew None for round 1; it must draw up to 2 numbers from 0 to 4, each once"),
        ("[0, 1, 2]", "sampler Draws drew [0, 1, 2] for round 1"),
        ("{}[99]", "sampler Draws failed with KeyError: 99"),
        ("[1.0, 2.0]", "sampler Draws failed with TypeError: 'float' object cannot be interpreted as an integer"),
    ],
)
def test_what_a_sampler_may_not_draw_is_refused_before_a_round(own, tmp_path: Path, draw: str, says: str) -> None:
    source = DRAWS.replace("{draw}", draw).replace("{sampler}", "Draws()")
    fields = FIELDS | {"root": tmp_path / "runs", "executor": "inline", "name": "a"}
    with pytest.raises(PluginFailed, match=re.escape(says)):
        rw.train(rw.TrainConfig(**fields, plugins=[f"{own(source, 'drawn')}:Drawn"]), bar=False)
    assert rw.open_run("a", tmp_path / "runs").done == 0


def test_numbers_of_numpy_are_numbers(own, tmp_path: Path) -> None:
    source = DRAWS.replace("{draw}", "numpy.arange(2)").replace("{sampler}", "Draws()")
    fields = FIELDS | {"root": tmp_path / "runs", "executor": "inline"}
    run = rw.train(rw.TrainConfig(**fields, plugins=[f"{own(source, 'drawn')}:Drawn"]), bar=False)
    assert run.replay("all").identical


@pytest.mark.parametrize("sampler", ["Draws", "Draws(6)", "Draws(0)", "3"])
def test_what_is_no_sampler_is_refused(own, tmp_path: Path, sampler: str) -> None:
    source = DRAWS.replace("{draw}", "[0, 1]").replace("{sampler}", sampler)
    with pytest.raises(UsageError, match=r"^drawn: .* is no rw.Sampler whose size is 1 to 5$"):
        plan(rw.TrainConfig(**FIELDS, root=tmp_path, plugins=[f"{own(source, 'drawn')}:Drawn"]))
