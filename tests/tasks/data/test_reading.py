"""The user's code is told for which partition it is called, whatever runs it, and is given options of its own."""

from __future__ import annotations

import pandas as pd
import pytest
from distributed import Client

import roundweave as rw
from roundweave.storage.errors import ExperimentDiffers
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor

SOURCE = """
from dataclasses import dataclass, replace
import roundweave as rw
import torch

def data(partition, partitions):
    me = rw.partition()
    assert (me.number, me.partitions, [*me.cohort]) == (partition, partitions, [*range(partitions)])
    return torch.full((8, 2), float(me.options["value"])), torch.arange(8) % 2

def transform(inputs):
    me = rw.partition()
    me.options["value"] = "a copy, which nobody sees"
    return inputs + 100 * me.number + 10 * len(me.cohort)

@dataclass(frozen=True)
class Tells(rw.LocalSteps):
    def __call__(self, objective, state, examples, carry, seed):
        me, [batch] = rw.partition(), rw.batches(examples, None, 1, seed)
        own = replace(self, lr=me.options.get("lr", self.lr))
        update = own.walk(objective, state, examples, seed, carry=carry)
        told = {"number": me.number, "cohort": sum(10**p for p in me.cohort), "value": me.options["value"],
                "inputs": batch.inputs.mean(), "named": me.name == str(me.number)}
        return replace(update, metrics=told)

def algorithm(*, lr: float = 1e-6):
    return rw.Algorithm(Tells(local_steps=2, lr=lr), rw.Mean(), rw.Sgd(lr=1.0))

def server(*, lr: float = 1e-6):
    return rw.Algorithm(Tells(local_steps=2, lr=lr), rw.Mean(), rw.Sgd(lr=1.0), rw.Asynchronous())

def optimizer(network):
    return torch.optim.SGD(network.parameters(), lr=rw.partition().options["lr"])

def loss(outputs, targets):
    rw.partition()
    return torch.nn.functional.cross_entropy(outputs, targets)
"""
OPTIONS = {0: {"value": 3.0}, 1: {"value": 4.0, "lr": 1e-7}, 2: {"value": 7.0}, 3: {"value": 1.0}}


LINEAR = {"model": "linear", "loss": "cross_entropy"}


def fields(path: str, **more: object) -> dict[str, object]:
    names = {name: f"{path}:{name}" for name in ("algorithm", "data", "transform")}
    return names | LINEAR | {"partition_options": OPTIONS, "held_out": 0.2, "rounds": 3} | more


def told(run: rw.Run) -> pd.DataFrame:
    names = ["number", "cohort", "value", "inputs", "named"]
    table = run.ds[names].to_dataframe().dropna().reset_index()
    assert len(table)
    assert (table["number"] == table["partition"]).all()
    assert table["named"].all()
    assert (table["value"] == table["partition"].map({p: each["value"] for p, each in OPTIONS.items()})).all()
    taking_part = table["cohort"].map(lambda digits: str(int(digits)).count("1"))
    assert (table["inputs"] == table["value"] + 100 * table["partition"] + 10 * taking_part).all()
    return table


@pytest.mark.parametrize("loaders", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_map_a_transform_and_a_data_function_know_the_partition_its_cohort_and_its_options(
    train, own, loaders: int
) -> None:
    run = train(**fields(own(SOURCE), cohort=2, loader_workers=loaders))
    table = told(run)
    for number, round in table.groupby("round"):
        took_part = [*run.round(number).commit.updates]
        assert (round["cohort"] == sum(10**p for p in took_part)).all()
    assert run.replay("all").identical
    assert run.recombine(2, reduce=rw.Median()).rounds[0].score is not None


@pytest.mark.dear("tasks and ranks of a cluster, each with code of the user's")
def test_it_is_the_same_on_workers_and_ranks_and_beside_other_runs(train, own, client: Client) -> None:
    path = own(SOURCE)
    executors = {"inline": InlineExecutor(), "graph": GraphExecutor(client), "ranks": RanksExecutor(client)}
    runs = {name: train(executor=each, name=name, **fields(path, rounds=2)) for name, each in executors.items()}
    assert {run.digest for run in runs.values()} == {runs["inline"].digest}
    for run in runs.values():
        told(run)
    zeros = {p: {"value": 0.0} for p in range(4)}
    other = train(name="other", **fields(path, partition_options=zeros, rounds=1))
    assert (other.ds["value"].to_dataframe().dropna()["value"] == 0).all()


def test_partitions_that_push_to_a_server_know_who_they_are(train, own) -> None:
    run = train(**fields(f"{own(SOURCE)}", algorithm=f"{own(SOURCE)}:server", cohort=2, rounds=8))
    assert (told(run)["cohort"] == 1111).all()
    assert run.replay("all").identical


@pytest.mark.thorough
def test_ranks_in_threads_of_one_process_know_it_too(train, own) -> None:
    given = {"algorithm": "fed_avg", "local_steps": 2, "lr": 1e-6, "model": "mlp", "ranks": 2, "rounds": 1}
    run = train(**fields(own(SOURCE), **given))
    assert not run.round(1).refused


NAMED = """
import numpy as np
import roundweave as rw
import torch

def data():
    quarter = np.array(["west", "east", "3", "north"])[np.arange(80) % 4]
    return rw.Dataset(rw.Examples(torch.ones(80, 2), torch.arange(80) % 2), columns={"quarter": quarter})

def transform(inputs):
    return inputs * rw.partition().options["times"]

def fails(inputs, target):
    if rw.partition().name in ("east", "again") and torch.initial_seed():
        raise ValueError(f"{rw.partition().number} is {rw.partition().name}")
    return inputs, target
"""
TIMES = {name: {"times": 1.0} for name in ("east", "north", "west", "3")}


def test_a_partition_has_the_name_of_its_value_or_of_its_data(train, own) -> None:
    path = own(NAMED)
    given = LINEAR | {"data": f"{path}:data", "split": "by:quarter", "rounds": 1}
    run = train(transform=f"{path}:transform", partition_options=TIMES, name="times", **given)
    assert not run.round(1).refused
    other = f"{own(NAMED.replace('data()', 'again()'), 'other')}:again"
    each = {"data": (given["data"], other), "split": "iid", "partitions": 2}
    for name, more in {"east": {}, "again": each}.items():
        run = train(transform=f"{path}:fails", name=name, **(given | more))
        assert [*run.round(1).refused] == [1]
        assert f"1 is {name}" in run.round(1).refused[1]


def test_options_of_no_partition_are_refused(train, own) -> None:
    fields = {"data": f"{own(NAMED)}:data", "split": "by:quarter", "model": "linear"}
    with pytest.raises(rw.UsageError, match=r"'nroth' is no partition, .*; did you mean north\?"):
        train(**fields, partition_options={"nroth": {}})


def test_options_are_of_the_experiment_and_their_file_may_go(train, own, tmp_path) -> None:
    file = tmp_path / "options.toml"
    file.write_text("".join(f"[{p}]\nvalue = {each['value']}\n" for p, each in OPTIONS.items()))
    path = own(SOURCE)
    run = train(name="kept", **fields(path, partition_options=str(file)))
    file.unlink()
    assert run.replay("all").identical
    with pytest.raises(ExperimentDiffers, match=r"partition_options .* -> "):
        train(name="kept", **fields(path, partition_options={**OPTIONS, 3: {"value": 2.0}}, rounds=4))


def test_code_that_is_called_for_all_partitions_is_refused_in_a_line(train, own) -> None:
    path = own(SOURCE)
    with pytest.raises(rw.UsageError, match=r"rw.partition\(\) needs"):
        rw.partition()
    for given in ({"loss": f"{path}:loss"}, {"held_out_transform": f"{path}:transform", "data": "digits"}):
        with pytest.raises(rw.RoundweaveError, match=r"rw.partition\(\) needs code that is called for one"):
            train(name="refused", **fields(path, **given))
