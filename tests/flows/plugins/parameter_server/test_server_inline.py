"""Asynchronous runs in this process: killed anywhere, in an order that was recorded, and storing less."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.pruned import check_pruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.tasks.algorithms.maps.gradient import Downpour
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.numerics.pinning import derive_seed
from tests.flows.plugins.parameter_server.proving import RUNS, SMALL
from tests.rows import but_first
from tests.tasks.executors.deeds import NAN, identities

ROUNDS = 14
SPEEDS = {"speeds": (1, 0.3, 2, 0.7)}
# In the first suite: who sits out while others go on, and who carries and meets others in a round.
FIRST = ("easgd-cohort", "fed_buff-carried")


@pytest.fixture
def some(tmp_path: Path) -> Callable[..., rw.Run]:
    """Train for so many rounds, and be killed then: nothing is closed, and nobody is told."""

    def run(rounds: int, name: str, last: int = ROUNDS, window: int = 5, **fields: object) -> rw.Run:
        executor = InlineExecutor()
        config = rw.TrainConfig(
            root=tmp_path / "runs", name=name, rounds=last, executor="inline", **SMALL | fields
        )
        with prepare(plan(config), executor) as ready:
            done = 0
            while done < rounds and ready.done + done < last:
                first = ready.done + done + 1
                commits = executor.run(ready.job, first, min(first + window - 1, last))
                made = list(islice(commits, rounds - done))
                commits.close()
                ready.let_go(made[-1])
                done += len(made)
        return rw.Run(ready.store.address)

    return run


@pytest.mark.parametrize("name", but_first(FIRST, RUNS))
def test_killed_at_any_round_a_run_goes_on_to_the_same_bits(some, name) -> None:
    fields = RUNS[name]
    whole = some(ROUNDS, "whole", **fields)
    assert whole.done == ROUNDS
    for rounds in (1, 1, 1, 1, 3, ROUNDS):
        run = some(rounds, "cut", **fields)
    assert identities(run) == identities(whole)
    assert run.verify().sound


@pytest.mark.parametrize("name", but_first(["easgd-cohort"], RUNS))
def test_a_recorded_order_gives_the_bits_of_the_run_that_recorded_it(some, name) -> None:
    fields = RUNS[name]
    first = some(ROUNDS, "first", **SPEEDS, **fields)
    assert identities(first) != identities(some(ROUNDS, "seeded", **fields)), "the speeds tell"
    again = some(ROUNDS, "again", order="recorded:first", **fields)
    assert identities(again) == identities(first)
    some(5, "gone-on", **SPEEDS, **fields)
    assert identities(some(ROUNDS, "gone-on", order="recorded:first", **fields)) == identities(first)


KEPT = but_first([("downpour", "last:1"), ("easgd", "every:3")], [("async_sgd", "states")])


@pytest.mark.parametrize(("name", "keep"), KEPT)
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


def test_a_servers_network_is_scored_after_ten_pushes_of_each_partition(some) -> None:
    fields = RUNS["async_sgd"]
    run = some(60, "run", last=60, **fields)
    assert [round for round in range(61) if run.round(round).score] == [0, 40, 60]
    run = some(4, "often", last=4, evaluate_every=2, **fields)
    assert [round for round in range(5) if run.round(round).score] == [0, 2, 4]


def test_a_few_bad_partitions_do_not_end_a_cohort_and_as_many_in_a_row_as_it_has_do(train, fields, do) -> None:
    fields = {"data": fields["data"], "model": "logistic", "partitions": 9, "held_out": 0, "rounds": 40}
    fields |= {"algorithm": "fed_buff", "cohort": 3}
    do(NAN, [2, 5], at="data", always=True)
    run = train(**fields)
    refused = [{*run.round(round).refused} for round in range(1, 41)]
    assert {2, 5} == set().union(*refused)
    for round, names in enumerate(refused, start=1):
        commit = run.round(round).commit
        unsound = names | {*run.round(round - 1).commit.server.unsound} if round > 1 else names
        assert {*commit.server.unsound} == (set() if commit.accepted else unsound)
    do(NAN, range(9), at="data", always=True)
    says = r"round \d+: no partition has a sound update left; partition \d: direction of 1.weight has"
    with pytest.raises(RoundFailed, match=says):
        train(**fields, name="bad")


def test_a_round_that_failed_is_done_again_with_the_same_arrival(some, tmp_path, monkeypatch) -> None:
    """By the executor that it failed in, which has lost a push."""
    fields = RUNS["async_sgd"]
    whole = some(6, "whole", last=6, **fields)
    step, failed, done = rw.Sgd.__call__, [], 0

    def fails_once(self, state, update):
        if state.round == 2 and not failed:
            raise ValueError("once")
        return step(self, state, update)

    monkeypatch.setattr(rw.Sgd, "__call__", fails_once)
    executor = InlineExecutor()
    config = rw.TrainConfig(root=tmp_path / "runs", name="failed", executor="inline", rounds=6, **SMALL | fields)
    with prepare(plan(config), executor) as ready:
        while done < 6:
            try:
                done = next(executor.run(ready.job, done + 1, done + 1)).round
            except RoundFailed as error:
                failed.append(str(error))
    assert "ValueError: once" in failed[0]
    assert identities(rw.Run(ready.store.address)) == identities(whole)


def test_a_replica_goes_on_from_what_it_fetched_though_its_update_was_unsound(some, monkeypatch) -> None:
    """Partition 1 is unsound at pushes 3, 6 and 7; an update tells whether it went on from a replica.

    It fetches before odd pushes: push 6 goes on from push 5, and 4 and 8 from what it fetched before.
    """
    mapped, faults = Downpour.__call__, {derive_seed(0, push, 1) for push in (3, 6, 7)}

    def faulty(self, objective, state, examples, carry, seed):
        update = mapped(self, objective, state, examples, carry, seed)
        if seed in faults:
            update = replace(update, direction={n: v * float("nan") for n, v in update.direction.items()})
        return replace(update, metrics={"carried": len(carry)})

    monkeypatch.setattr(Downpour, "__call__", faulty)
    fields = {"algorithm": "downpour", "fetch_every": 2, "last": 40}
    whole = some(40, "whole", **fields)
    updates = [whole.round(round).commit.updates.get(1) for round in range(1, 41)]
    pushes = {update.arrival.push: update for update in updates if update}
    assert [push for push, update in pushes.items() if update.refused] == [3, 6, 7]
    assert [pushes[push].metrics["carried"] for push in range(1, 9)] == [0, 1, 0, 0, 0, 1, 0, 0]
    for rounds in [3] * 4 + [28]:
        cut = some(rounds, "cut", **fields)
    assert identities(cut) == identities(whole)
    assert rw.open_run(cut.path).replay("all", trust=True).identical
