"""Asynchronous runs in this process: killed anywhere, in an order that was recorded, and storing less."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import prepared
from roundweave.flows.stored import Run
from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.pruned import check_pruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.parameter_server.server import ParameterServer
from tests.tasks.sampled import sampled

SMALL = {"model": "logistic", "partitions": 4, "executor": "inline"}
ROUNDS = 14

RUNS: dict[str, dict[str, object]] = {
    "async_sgd": {"algorithm": "async_sgd", "fetch_every": 2, "momentum": 0.5},
    "async_sgd-scaled": {"algorithm": "async_sgd", "stale": "scale"},
    "async_sgd-stale": {"algorithm": "async_sgd", "max_staleness": 1},
    "downpour": {"algorithm": "downpour", "fetch_every": 4, "push_every": 2, "max_staleness": 2},
    "easgd": {"algorithm": "easgd", "local_steps": 2, "elasticity": 0.3},
    "easgd-carried": {"algorithm": "easgd", "local_steps": 2, "momentum": 0.9, "optimizer_state": "carried"},
    "fed_buff": {"algorithm": "fed_buff", "local_steps": 2, "buffer": 3, "outer_momentum": 0.5},
    "fed_buff-carried": {
        "algorithm": "fed_buff",
        "local_steps": 2,
        "buffer": 3,
        "optimizer": "AdamW",
        "optimizer_state": "carried",
    },
    "async_sgd-cohort": {"algorithm": "async_sgd", "cohort": 2, "momentum": 0.5, "max_staleness": 2},
    "downpour-cohort": {"algorithm": "downpour", "cohort": 3, "fetch_every": 2, "push_every": 2},
    "easgd-cohort": {
        "algorithm": "easgd",
        "cohort": 2,
        "cohort_by_size": True,
        "local_steps": 2,
        "momentum": 0.9,
        "optimizer_state": "carried",
    },
    "fed_buff-cohort": {"algorithm": "fed_buff", "local_steps": 2, "buffer": 2, "cohort": 0.75},
}


@pytest.fixture
def some(tmp_path: Path) -> Callable[..., Run]:
    """Train for so many rounds, and be killed then: nothing is closed, and nobody is told."""

    def run(rounds: int, name: str, last: int = ROUNDS, window: int = 5, **fields: object) -> Run:
        executor = InlineExecutor()
        config = TrainConfig(root=tmp_path / "runs", name=name, rounds=last, **SMALL, **fields)
        with prepared(resolve(config), executor) as ready:
            done = 0
            while done < rounds and ready.done + done < last:
                first = ready.done + done + 1
                commits = executor.run(ready.job, first, min(first + window - 1, last))
                made = list(islice(commits, rounds - done))
                commits.close()
                ready.let_go(made[-1])
                done += len(made)
        return Run(ready.store.address)

    return run


def identities(run: Run) -> list[tuple[object, ...]]:
    return [run.round(round).commit.identity() for round in range(run.done + 1)]


@pytest.mark.parametrize("fields", sampled(3, RUNS.values()), ids=RUNS)
def test_killed_at_any_round_a_run_goes_on_to_the_same_bits(some, fields) -> None:
    whole = some(ROUNDS, "whole", **fields)
    assert whole.done == ROUNDS
    for cuts in ([1] * 6 + [ROUNDS], [3, 4, ROUNDS]):
        for rounds in cuts:
            run = some(rounds, f"cut-{cuts[0]}", **fields)
        assert identities(run) == identities(whole)
    assert run.verify().sound


@pytest.mark.parametrize("window", [1, 4, ROUNDS])
def test_windows_change_no_bits(some, window) -> None:
    fields = RUNS["downpour"]
    assert identities(some(ROUNDS, "some", window=window, **fields)) == identities(some(ROUNDS, "whole", **fields))


@pytest.mark.parametrize("fields", sampled(3, RUNS.values(), first=1), ids=RUNS)
def test_a_recorded_order_gives_the_bits_of_the_run_that_recorded_it(some, fields) -> None:
    first = some(ROUNDS, "first", speeds=(1, 0.3, 2, 0.7), **fields)
    assert identities(first) != identities(some(ROUNDS, "seeded", **fields)), "the speeds tell"
    again = some(ROUNDS, "again", order="recorded:first", **fields)
    assert identities(again) == identities(first)
    some(5, "gone-on", speeds=(1, 0.3, 2, 0.7), **fields)
    assert identities(some(ROUNDS, "gone-on", order="recorded:first", **fields)) == identities(first)


@pytest.mark.parametrize(("name", "keep"), [("async_sgd", "states"), ("downpour", "last:1"), ("easgd", "every:3")])
def test_what_partitions_have_in_hand_is_kept_to_go_on_from(some, name, keep) -> None:
    """A slow partition goes on from a state of long ago, which stays till then, or can be made again.

    Without updates later states cannot be made again, so under ``every:3`` they stay until it has pushed.
    """
    fields = RUNS[name] | {"speeds": (1, 1, 1, 0.4 if keep == "every:3" else 0.2)}
    whole = some(ROUNDS, "whole", **fields)
    for rounds in (4, 5, ROUNDS):
        run = some(rounds, "less", keep=keep, **fields)
        check_pruned(RoundStore(run.path).log)
        assert run.verify().sound
    assert identities(run) == identities(whole)
    assert len(run.kept) < ROUNDS + 1 or keep == "states"


def test_a_run_falls_back_to_a_round_whose_states_in_hand_are_whole(some, flip) -> None:
    fields = RUNS["async_sgd"] | {"speeds": (1, 1, 1, 0.2), "keep": "states"}
    whole = some(ROUNDS, "whole", **fields)
    run = some(8, "run", **fields)
    row = max(run.round(8).commit.begins - {8})
    chunk = next(path for path in (run.path / "params/1.weight/c" / str(row)).rglob("*") if path.is_file())
    flip(chunk, 20)
    assert identities(some(ROUNDS, "run", **fields)) == identities(whole)


def test_what_a_killed_commit_left_of_the_next_round_is_deleted_as_another_partition_may_make_it(some) -> None:
    fields = RUNS["easgd"]
    whole, run = some(ROUNDS, "whole", **fields), some(5, "run", **fields)
    stored = [path for path in run.path.glob("**/c/5/*") if {"updates", "carry"} & {*path.parts}]
    assert {"updates", "carry"} <= {part for path in stored for part in path.parts}
    for path in stored:
        for partition in {0, 1, 2, 3} - whole.round(6).commit.updates.keys():
            shutil.copytree(path, path.parents[1] / "6" / str(partition))
    assert identities(some(ROUNDS, "run", **fields)) == identities(whole)
    assert run.verify().sound


def test_the_history_tells_of_staleness_and_refusals(some) -> None:
    run = some(ROUNDS, "run", **RUNS["async_sgd-stale"])
    history = run.history()
    for round in range(1, ROUNDS + 1):
        updates = run.round(round).commit.updates.values()
        assert history["refused"][round] == sum(update.refused is not None for update in updates)
        assert history["accepted"][round] == len(updates) - history["refused"][round]
        taken = [(u.arrival.staleness, u.weight) for u in updates if u.refused is None]
        if taken:
            mean = sum(s * w for s, w in taken) / sum(w for _, w in taken)
            assert history["staleness"][round] == pytest.approx(mean)
    assert history["refused"].sum() > 0
    assert history["staleness"].max() == 1


def test_a_servers_network_is_scored_after_ten_pushes_of_each_partition(some) -> None:
    fields = RUNS["async_sgd"]
    run = some(60, "run", last=60, **fields)
    assert [round for round in range(61) if run.round(round).score] == [0, 40, 60]
    run = some(4, "often", last=4, evaluate_every=2, **fields)
    assert [round for round in range(5) if run.round(round).score] == [0, 2, 4]


NAN = """
import torch
def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(40, 4, generator=generator)
    labels = (inputs.sum(1) > 0).long()
    if partition in {bad}:
        inputs[:, 2] = float("nan")
    return inputs, labels
"""


@pytest.mark.parametrize("algorithm", ["downpour", "fed_buff"])
def test_a_partition_of_nan_is_refused_by_name_and_the_others_go_on(train, own, algorithm) -> None:
    data = f"{own(NAN.format(bad=[2]))}:data"
    run = train(algorithm=algorithm, data=data, model="logistic", partitions=3, rounds=9)
    refused = {p for round in range(1, 10) for p in run.round(round).refused}
    assert refused == {2}
    assert run.round(9).commit.server.unsound == (2,)


def test_a_few_bad_partitions_do_not_end_a_cohort_and_as_many_in_a_row_as_it_has_do(train, own) -> None:
    fields = {"algorithm": "fed_buff", "model": "logistic", "partitions": 9, "cohort": 3, "rounds": 40}
    run = train(data=f"{own(NAN.format(bad=[2, 5]))}:data", **fields)
    refused = [{*run.round(round).refused} for round in range(1, 41)]
    assert {2, 5} == set().union(*refused)
    for round, names in enumerate(refused, start=1):
        commit = run.round(round).commit
        unsound = names | {*run.round(round - 1).commit.server.unsound} if round > 1 else names
        assert {*commit.server.unsound} == (set() if commit.accepted else unsound)
    says = r"round \d+: no partition has a sound update left; partition \d: direction of 1.weight has"
    with pytest.raises(RoundFailed, match=says):
        train(data=f"{own(NAN.format(bad=[*range(9)]), 'bad')}:data", name="bad", **fields)


def test_what_a_partition_carries_that_sits_out_is_in_the_store_alone(some, monkeypatch) -> None:
    held = list[tuple[int, int]]()
    settle = ParameterServer.settle

    def settled(server: ParameterServer, *arrived: object) -> None:
        settle(server, *arrived)
        held.append((len(server._before), len(server.carry_from)))

    monkeypatch.setattr(ParameterServer, "settle", settled)
    some(30, "run", last=30, window=3, **{"algorithm": "easgd", "cohort": 1, "local_steps": 1})
    assert max(count for count, _ in held) <= 1
    assert held[-1][1] == 4


@pytest.mark.parametrize("algorithm", ["async_sgd", "fed_buff"])
def test_a_run_fails_by_name_once_every_partition_is_unsound(train, own, algorithm) -> None:
    data = f"{own(NAN.format(bad=[0, 1, 2]))}:data"
    says = r"round \d: no partition has a sound update left; partition \d: direction of 1.weight has 8 non-finite"
    with pytest.raises(RoundFailed, match=says):
        train(algorithm=algorithm, data=data, model="logistic", partitions=3, rounds=9)


FAILING = """
from dataclasses import dataclass
from pathlib import Path
from roundweave import Algorithm, Gradient, Mean, Sgd
from roundweave.tasks.algorithms.when import Asynchronous
@dataclass(frozen=True)
class Failing(Sgd):
    def __call__(self, state, update):
        mark = Path(__file__).with_name("fail")
        if state.round == 2 and mark.exists():
            mark.unlink()
            raise ValueError("once")
        return super().__call__(state, update)
def algorithm():
    return Algorithm(Gradient(8), Mean(), Failing(0.1), Asynchronous())
"""


def test_a_round_that_failed_is_done_again_with_the_same_arrival(train, own, tmp_path) -> None:
    """Also by the executor that it failed in."""
    fields = {"algorithm": f"{own(FAILING)}:algorithm", "model": "logistic", "partitions": 2, "rounds": 6}
    whole = train(**fields, name="whole")
    (tmp_path / "fail").touch()
    executor = InlineExecutor()
    config = TrainConfig(root=tmp_path / "runs", name="failed", executor="inline", **fields)
    with prepared(resolve(config), executor) as ready:
        found = []
        for _ in range(2):
            first = len(found) + 1
            try:
                found += list(executor.run(ready.job, first, first))
                for round in range(first + 1, 7):
                    found += list(executor.run(ready.job, round, round))
            except RoundFailed as error:
                assert "ValueError: once" in str(error)
    assert [commit.state for commit in found] == [whole.round(r).commit.state for r in range(1, 7)]


FAULTY = """
from dataclasses import dataclass, replace
from roundweave import Algorithm, Mean, Sgd
from roundweave.tasks.algorithms.maps.gradient import Downpour
from roundweave.tasks.numerics.pinning import derive_seed
from roundweave.tasks.algorithms.when import Asynchronous
FAULTS = {derive_seed(0, push, 1) for push in (3, 6, 7)}
@dataclass(frozen=True)
class Faulty(Downpour):
    '''Partition 1 is unsound at pushes 3, 6 and 7; tells whether it went on from a replica.'''
    def __call__(self, objective, state, examples, carry, seed):
        update = super().__call__(objective, state, examples, carry, seed)
        if seed in FAULTS:
            update = replace(update, direction={n: v * float("nan") for n, v in update.direction.items()})
        return replace(update, metrics={"carried": len(carry)})
def algorithm():
    return Algorithm(Faulty(fetch_every=2), Mean(), Sgd(0.1), Asynchronous(fetch_every=2))
"""


def test_a_replica_goes_on_from_what_it_fetched_though_its_update_was_unsound(some, own) -> None:
    """It fetches before odd pushes: push 6 goes on from push 5, and 4 and 8 from what it fetched before."""
    fields = {"algorithm": f"{own(FAULTY)}:algorithm", "last": 40}
    whole = some(40, "whole", **fields)
    updates = [whole.round(round).commit.updates.get(1) for round in range(1, 41)]
    pushes = {update.arrival.push: update for update in updates if update}
    assert [push for push, update in pushes.items() if update.refused] == [3, 6, 7]
    assert [pushes[push].metrics["carried"] for push in range(1, 9)] == [0, 1, 0, 0, 0, 1, 0, 0]
    for rounds in [1] * 12 + [7] * 4:
        cut = some(rounds, "cut", **fields)
    assert identities(cut) == identities(whole)
    assert rw.open_run(cut.path).replay("all", trust=True).identical
