"""Rounds with a deadline: who has not answered is absent by name, keeps its carry, and may answer the next round."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from roundweave.flows.config.train import TrainConfig
from roundweave.storage.errors import UsageError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.deadline import DeadlineRounds
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.tasks.executors.deeds import lines

SLEEP = "time.sleep(15)"
"""A map that is still at it when the deadline of its round is over."""

LATE = {"deadline": 0.5, "quorum": 3, "algorithm": "scaffold"}


@pytest.mark.parametrize(
    ("took", "seconds"),
    [
        ([], math.inf),
        ([0.1, 0.2, 0.1], 1.0),  # never less than a second
        ([2.0, 4.0, 6.0], 4.0 + 3 * 2.0),
        ([3.0, 3.0, 3.0, 3.0, 90.0], 3.0),
    ],
)
def test_an_automatic_deadline_is_three_deviations_beyond_the_median(took, seconds) -> None:
    rounds = DeadlineRounds(SimpleNamespace())
    rounds._took = took
    assert rounds.seconds("auto") == seconds
    assert rounds.seconds(2.5) == 2.5


@pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])
def test_a_late_partition_is_absent_by_name_and_answers_a_later_round(
    train, client, fields, do, caplog, kind
) -> None:
    """The round is that of its reference without the partition, and what follows is replayed to the bit."""
    reference = train(**fields | {"algorithm": "scaffold"}, name="reference")
    do(SLEEP, 2, 1)
    run = train(kind(client, Setting()), 4, **fields | LATE | {"rounds": 40}, name="there")
    absent = {number: run.round(number).absent for number in run.committed if run.round(number).absent}
    assert absent and set(absent.values()) == {(2,)} and min(absent) == 2
    assert run.round(1).commit.state == reference.round(1).commit.state
    assert run.round(2).commit.state == reference.recombine(2, without=[2]).rounds[0].digest
    assert run.round(2).commit.carry_from == {0: 2, 1: 2, 2: 1, 3: 2}  # it keeps its own of round 1
    assert run.round(40).commit.carry_from[2] == 40  # it is there again
    assert run.history()["absent"].sum() == len(absent)
    assert run.history()["accepted"].loc[2] == 3
    replayed = run.replay(rounds="all", executor="inline")
    assert replayed.identical and len(replayed.replayed) == 40
    assert run.verify().sound
    told = [line for line in lines(caplog) if line.startswith("partition")]
    assert told == [
        "partition 2 has not answered in 0.5 s: round 2 goes on without it",
        f"partition 2 answers again in round {max(absent) + 1}",
    ]


def test_a_round_waits_beyond_its_deadline_for_its_quorum(train, client, fields, do) -> None:
    reference = train(**fields, name="reference")
    do("time.sleep(2)", 2, 1)
    run = train(GraphExecutor(client), 4, **fields | {"deadline": 0.1, "quorum": 4}, name="there")
    assert run.digest == reference.digest
    assert not any(run.round(number).absent for number in run.committed)


def test_a_resumed_run_keeps_who_was_absent(train, client, fields, do) -> None:
    do(SLEEP, 2, 1)
    fields |= LATE
    train(GraphExecutor(client), 1, **fields | {"rounds": 2}, name="there")
    run = train(GraphExecutor(client), 1, **fields | {"rounds": 3, "deadline": None}, name="there")
    assert run.round(2).absent == (2,)
    assert run.round(3).absent == ()
    assert run.replay(rounds="all", executor="inline").identical


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"executor": "inline", "deadline": 5}, "executor inline waits for each map"),
        ({"deadline": "soon"}, "seconds after which a round that has its quorum goes on"),
        ({"deadline": 0}, "seconds after which a round that has its quorum goes on"),
    ],
)
def test_a_deadline_that_cannot_be_kept_is_refused(fields, why) -> None:
    with pytest.raises(UsageError, match=why):
        TrainConfig(**fields)


def test_a_server_has_no_deadline(train, fields, client) -> None:
    with pytest.raises(UsageError, match="a parameter server waits for nobody"):
        train(GraphExecutor(client), 1, **fields | {"deadline": 5, "algorithm": "downpour"}, name="there")
