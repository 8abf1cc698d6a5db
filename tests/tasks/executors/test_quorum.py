"""Rounds with a deadline: who has not answered is absent by name, keeps its carry, and may answer later."""

from __future__ import annotations

import math

import pytest

from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.rows import but_first
from tests.tasks.executors.deeds import identities, idle, lines, until

SLEEP = "time.sleep(6)"
"""A map that is still at it when the deadline of its round is over."""

LATE = {"deadline": 2, "algorithm": "scaffold"}
"""Of two partitions each has a worker of its own, and the other one answers at once."""


@pytest.fixture
def fields(fields) -> dict[str, object]:
    return fields | {"partitions": 2}


def test_a_late_partition_is_absent_by_name_and_answers_a_later_round(train, client, fields, do, caplog) -> None:
    """The round is that of its reference without the partition, and what follows is replayed to the bit."""
    reference = train(**fields | {"algorithm": "scaffold"}, name="reference")
    do(SLEEP, 1, 1)
    run = train(GraphExecutor(client), 4, **fields | LATE | {"rounds": 12}, name="there")
    absent = {number: run.round(number).absent for number in run.committed if run.round(number).absent}
    assert absent and set(absent.values()) == {(1,)} and min(absent) == 2
    assert run.round(1).commit.state == reference.round(1).commit.state
    assert run.round(2).commit.state == reference.recombine(2, without=[1]).rounds[0].digest
    assert run.round(2).commit.carry_from == {0: 2, 1: 1}  # it keeps its own of round 1
    assert run.round(12).commit.carry_from[1] == 12  # it is there again
    assert run.history()["absent"].sum() == len(absent)
    assert run.history()["accepted"].loc[2] == 1
    replayed = run.replay(rounds="all", executor="inline")
    assert replayed.identical and len(replayed.replayed) == 12
    assert run.verify().sound
    told = [line for line in lines(caplog) if line.startswith("partition")]
    assert told == [
        "partition 1 has not answered in 2 s: round 2 continues without it",
        f"partition 1 answers again in round {max(absent) + 1}",
    ]


COUNTING = """
passes = Path(__file__).with_name("passes")
passes.write_text(str(1 + int(passes.read_text() if passes.exists() else 0)))
time.sleep(0.2)
"""
"""A pass through the network that is counted and takes its time."""


def test_a_late_map_ends_once_its_round_has_gone_on(train, client, fields, do, tmp_path) -> None:
    """So its worker is free: of the 100 passes of a map in round 2, and in round 3, it does a few."""
    do(COUNTING, 1, 1, always=True)
    late = {"deadline": 3, "rounds": 3, "local_steps": 100}
    run = train(GraphExecutor(client), 1, **fields | late, name="there")
    assert [run.round(number).absent for number in (1, 2, 3)] == [(), (1,), (1,)]
    until(lambda: idle(client))
    assert 2 <= int((tmp_path / "passes").read_text()) < 60


@pytest.mark.thorough
def test_a_round_that_is_reduced_again_is_scored_on_those_that_answered(train, client, fields, do) -> None:
    do(SLEEP, 1, 1)
    run = train(GraphExecutor(client), 1, **fields | LATE | {"rounds": 2, "held_out": 0.2}, name="there")
    assert run.round(2).absent == (1,)
    (again,) = run.recombine(2).rounds
    assert again.score == again.original
    assert again.score is not None and math.isfinite(again.score.loss)


@pytest.mark.parametrize("kind", but_first([GraphExecutor], [RanksExecutor]))
def test_a_round_waits_beyond_its_deadline_for_its_quorum(train, client, fields, do, kind) -> None:
    reference = train(**fields, name="reference")
    do("time.sleep(2)", 1, 1)
    run = train(kind(client), 4, **fields | {"deadline": 0.1, "quorum": 2}, name="there")
    assert identities(run) == identities(reference)
    assert not any(run.round(number).absent for number in run.committed)


@pytest.mark.thorough
def test_a_resumed_run_keeps_who_was_absent(train, client, fields, do) -> None:
    do(SLEEP, 1, 1)
    fields |= LATE
    train(GraphExecutor(client), 1, **fields | {"rounds": 2}, name="there")
    run = train(GraphExecutor(client), 1, **fields | {"rounds": 3, "deadline": None}, name="there")
    assert run.round(2).absent == (1,)
    assert run.round(3).absent == ()
    assert run.replay(rounds="all", executor="inline").identical
