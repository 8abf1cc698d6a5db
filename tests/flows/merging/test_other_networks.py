"""Runs whose networks compute something else, or whose examples mean something else, are not averaged unseen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.merging.preparing import MergePlan, plan_merge
from roundweave.storage.errors import ModelError, UsageError
from tests import training

MINE = """
import torch
from torch import nn

def data(day=1):
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(day))
    return inputs, (inputs[:, 0] > 0).long()

class Masked(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).masked_fill(torch.arange(3) == 2, -torch.inf)

def masked(): return Masked(4, 3)

def net(act="ReLU", dropout=0.0):
    head = nn.Linear(8, 2)
    nn.init.zeros_(head.weight)  # by which no difference of what comes before would show
    return nn.Sequential(nn.Linear(4, 8), getattr(nn, act)(), nn.Dropout(dropout), head)

def plain(inputs): return inputs

def tenfold(inputs): return 10 * inputs
"""
RUNS: dict[str, dict[str, object]] = {
    "first": {},
    "again": {"seed": 1},
    "tanh": {"model_options": {"act": "Tanh"}},
    "dropped": {"model_options": {"dropout": 0.5}},
    "tenfold": {"transform": "tenfold", "held_out_transform": "tenfold"},
    "relu6": {"model_options": {"act": "ReLU6"}},
    "masked": {"model": "masked"},
    "later": {"data_options": {"day": 2}},
    "latest": {"data_options": {"day": 3}},
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., MergePlan]:
    """Plan the merge of runs by their names; functions are of one file, or of its copy where it was edited."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "mine.py").write_text(MINE)
    (folder / "edited.py").write_text(f"# an edit that changes nothing\n{MINE}".replace("head", "last"))

    def fields(file: Path, given: dict[str, object]) -> dict[str, object]:
        functions = ("data", "model", "transform", "held_out_transform")
        return {name: f"{file}:{text}" if name in functions else text for name, text in given.items()}

    basic = {"data": "data", "model": "net", "partitions": 1, "rounds": 1, "local_steps": 1}
    for name, more in (RUNS | {"edited": {}, "edited_mask": {"model": "masked"}}).items():
        file = folder / ("edited.py" if name.startswith("edited") else "mine.py")
        training.trained(folder, **fields(file, basic | more), name=name)

    def planned(*names: str, **given: object) -> MergePlan:
        config = {"networks": tuple(f"{name}@-1" for name in names), "root": str(folder), "executor": "inline"}
        return plan_merge(rw.MergeConfig(**config, **fields(folder / "mine.py", given)))

    return planned


@pytest.mark.parametrize("fields", [{}, {"match": "none", "input": "2x4", "out": "out.safetensors"}])
def test_models_that_compute_something_else_with_the_same_weights_are_refused(plan, fields) -> None:
    with pytest.raises(
        ModelError, match=r"\{\} and .*net \{.act.: .Tanh.\} of these runs are other networks; give"
    ):
        plan("first", "again", "tanh", **fields)
    assert plan("first", "tanh", model="net", model_options={"act": "Tanh"}).model.options == '{"act": "Tanh"}'


def test_large_numbers_and_the_base_are_looked_at_too(plan) -> None:
    for names, more in ((["first", "relu6"], {}), (["first", "again"], {"base": "tanh@-1", "average": "ties"})):
        with pytest.raises(ModelError, match="of these runs are other networks"):
            plan(*names, **more)


@pytest.mark.parametrize(
    "pair", [("first", "again"), ("first", "dropped"), ("first", "edited"), ("masked", "edited_mask")]
)
def test_models_that_compute_the_same_are_merged(plan, pair) -> None:
    """Though their text or their options are others."""
    assert plan(*pair).function_error < 1e-10


def test_examples_that_are_prepared_in_another_way_are_refused(plan) -> None:
    with pytest.raises(
        UsageError, match="run tenfold has another held_out_transform than run first; give the one by"
    ):
        plan("first", "tenfold")
    plan("first", "tenfold", transform="plain", held_out_transform="plain")
    assert plan("tenfold", "tenfold").config.transform.name == "tenfold"


def test_options_of_the_data_are_those_of_the_runs(plan) -> None:
    pairs = (("later", "later"), {}), (("first", "again"), {}), (("later", "latest"), {"data_options": {"day": 3}})
    plans = [plan(*names, **given) for names, given in pairs]
    first = [each.gallery.partitions.load(0, 0).train.inputs for each in plans]
    assert [each.config.data_options for each in plans] == [{"day": 2}, {}, {"day": 3}]
    assert not any((first[0] == each).all() for each in first[1:])
    with pytest.raises(UsageError, match=r"run latest has another data_options than run later.* --data-options"):
        plan("later", "latest")
    own = [samples.partitions.load(0, 0).train.inputs for samples in plans[-1].own]
    assert not (own[0] == own[1]).all()  # each network's own are those of its day
    plan("later", "latest", data="data")  # the user names data, which have options of their own
