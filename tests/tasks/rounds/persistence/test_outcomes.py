"""Runs that keep all updates and few states: the states between are made again from them, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import roundweave as rw
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.errors import RoundFailed, RoundPruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.upkeep.recovery import newest_sound
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.persistence.outcomes import outcome_of
from tests.counting import counting
from tests.rows import but_first
from tests.tasks.rounds.persistence.conftest import SMALL, stored_states

SELDOM = {"keep": "updates:4", "evaluate_every": 100}


def work_of(run: rw.Run, **fields: object) -> Work:
    """The work of a run's configuration."""
    config = rw.TrainConfig(**fields, root=Path(run.path).parent, rounds=run.done, name=run.name)
    with prepare(plan(config), InlineExecutor()) as ready:
        return ready.job.work


def assert_replays(run: rw.Run, rounds: int) -> None:
    for executor in ("inline", "graph"):
        replay = rw.open_run(run.path).replay("all", executor=executor)
        assert [result.status for result in replay.results] == ["bit-identical"] * rounds, replay


FIRST = ("scaffold", "fed_buff")  # carries and memory; updates of several versions


@pytest.mark.parametrize("algorithm", but_first(FIRST, sorted(ALGORITHMS)))
def test_a_state_that_is_made_again_is_the_one_that_was_stored(train, workers, algorithm: str) -> None:
    local = {"local_steps": 2} if "local_steps" in ALGORITHMS[algorithm].options else {}
    fields = SMALL | local | {"algorithm": algorithm}
    whole = train(**fields, rounds=5, keep="all", name="whole")
    run = train(window=5, **fields, **SELDOM, rounds=5, name="run")
    assert stored_states(run) == [0, 4, 5]
    assert [run.round(r).commit.state for r in range(6)] == [whole.round(r).commit.state for r in range(6)]
    assert verify(run.path).sound
    work = work_of(run, **fields, **SELDOM)
    for round in (3, 1, 2, 5, 4):
        outcome = outcome_of(work, RoundStore(run.path), round)
        stored = whole.round(round).named
        named = outcome.state.named(work.objective.layout)
        assert named.keys() == stored.keys()
        assert all(torch.equal(named[path], stored[path]) for path in stored)
        assert outcome.carry_from == whole.round(round).commit.carry_from
    assert_replays(run, 5)


def test_carries_extras_buffers_frozen_tensors_and_refusals_are_made_again(train, workers, own) -> None:
    fields = counting(own) | {"partitions": 3, "rounds": 4, "evaluate_every": 100, "keep": "updates:9"}
    inline, graph = train(window=4, **fields, name="inline"), train(workers, 4, **fields, name="graph")
    assert (inline.digest, stored_states(inline)) == (graph.digest, [0, 4])
    assert stored_states(inline) == [0, 4]
    assert inline.round(2).refused.keys() == {1}
    assert_replays(graph, 4)


ROWS = but_first([(3, 4, 8, [0, 3, 6, 8])], [(100, 1, 3, [0, 8])])


@pytest.mark.parametrize(("every", "evaluate_every", "window", "there"), ROWS)
def test_states_of_every_few_rounds_and_the_last_are_there(train, every, evaluate_every, window, there) -> None:
    """By hand. A window of this process begins from what it holds."""
    fields = SMALL | {"local_steps": 1, "rounds": 8, "evaluate_every": evaluate_every, "keep": f"updates:{every}"}
    run = train(window=window, **fields, name="run")
    assert (run.kept, stored_states(run)) == (there, there)
    assert run["fc1.weight"]["round"].values.tolist() == there
    assert run.changes().index.tolist() == [round for round in there if round - 1 in there]
    shown = run.ds["fc1.weight"].values
    assert [bool(np.isfinite(shown[round]).all()) for round in range(9)] == [round in there for round in range(9)]
    assert len(run.divergence()) == 9
    seen = verify(run.path)
    assert (seen.findings, seen.notes) == ((), ())


@pytest.fixture
def sparse(train) -> rw.Run:
    """Nine rounds in one window, with the states of rounds 0, 4, 8 and 9."""
    return train(window=9, **SMALL, local_steps=2, **SELDOM, rounds=9, name="sparse")


def test_another_state_than_was_committed_is_an_error(sparse) -> None:
    work = work_of(sparse, **SMALL, local_steps=2, **SELDOM)
    other = replace(work, algorithm=replace(work.algorithm, apply=rw.Sgd(lr=0.5)))
    with pytest.raises(RoundFailed, match=r"round 5 of .* is not stored, and computed again it has another state"):
        outcome_of(other, RoundStore(sparse.path), 6)


def test_a_damaged_update_between_is_named(sparse, flip) -> None:
    flip(sparse.path / "updates/float32/c/6/1/0", 40)
    found = [finding.path for finding in verify(sparse.path).findings]
    assert found == ["updates/float32/c/6/1/0"]
    results = rw.open_run(sparse.path).replay("all").results
    assert [result.round for result in results if not result.identical] == [7, 8]
    assert "updates/float32/c/6/1/0" in str(results[6])
    assert newest_sound(RoundStore(sparse.path)) == 9


def test_a_run_cut_short_between_states_goes_on_to_the_same_bits(train, sparse, cut_short, flip) -> None:
    """Within a window, after round 6: it is whole with all updates since round 4, else round 4 is."""
    for damaged, done in ((None, 6), (5, 4)):
        fields = SMALL | {"local_steps": 2, **SELDOM, "rounds": 9, "name": f"cut{done}"}
        short = cut_short(6, **fields)
        assert stored_states(short) == [0, 4]
        if damaged:
            flip(short.path / f"updates/float32/c/{damaged}/0/0", 40)
        assert newest_sound(RoundStore(short.path)) == done
        run = train(window=9, **fields)
        assert run.digest == sparse.digest
        assert verify(run.path).sound
        assert rw.open_run(run.path).replay("all").identical


def test_a_state_that_a_writer_left_is_a_note_and_goes_with_the_next_pruning(sparse) -> None:
    store = RoundStore(sparse.path)
    state = outcome_of(work_of(sparse, **SMALL, local_steps=2, **SELDOM), store, 6).state
    store.tensors.write_state(state)
    seen = verify(sparse.path)
    assert seen.sound
    assert "round 6" in str(seen.notes[0])
    with pytest.raises(RoundPruned):
        store.tensors.read_state(6)
    prune_run(store, Keep.of("updates:4"))
    assert stored_states(sparse) == [0, 4, 8, 9]
    assert verify(sparse.path).notes == ()


@pytest.mark.parametrize("keep", but_first(["last:1"], ["updates:2", "states", "every:5"]))
def test_whatever_is_kept_of_a_run_that_ends_between_states_it_goes_on(train, sparse, cut_short, keep) -> None:
    fields = SMALL | {"local_steps": 2, **SELDOM, "rounds": 9, "name": "cut"}
    path = cut_short(7, **fields).path
    prune_run(RoundStore(path), Keep.of(keep))
    assert newest_sound(RoundStore(path)) == 7
    assert verify(path).sound
    run = train(window=2, **fields | {"keep": keep})
    assert run.digest == sparse.digest
    assert verify(path).sound


@pytest.mark.parametrize("keep", but_first(["updates:3"], ["last:1"]))
def test_a_parameter_server_goes_on_from_what_its_partitions_have_in_hand(train, keep: str) -> None:
    fields = SMALL | {"algorithm": "async_sgd", "evaluate_every": 100}
    whole = train(window=5, **fields, rounds=11, name="whole")
    for rounds in (4, 7, 11):
        run = train(window=3, **fields, rounds=rounds, keep=keep, name="run")
        base = max(round for round in run.kept if round <= min(run.round(-1).commit.begins))
        assert all(map(run.absent.has_update, range(base + 1, rounds + 1)))
        assert verify(run.path).sound
    assert run.digest == whole.digest
