"""A worker holds the outcome that it has just committed for the window that begins from it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from roundweave.storage.rounds.commits import Commit
from roundweave.storage.values.state import State
from roundweave.tasks.executors import on_worker
from roundweave.tasks.executors.on_worker import commit_and_hold, read_or_held
from roundweave.tasks.rounds.steps import Outcome


def outcome(round: int) -> Outcome:
    return Outcome(State({"float32": torch.zeros(1)}, round=round))


@pytest.fixture
def job(monkeypatch):
    """A job of three rounds whose store gives another outcome of round 1 or 2 than was committed."""

    def commit(job, computed, previous, closing):
        return Commit(computed.outcome.state.round, job.attempt.token, 0, "", {}, stop=computed.tallies)

    monkeypatch.setattr(on_worker, "commit_round", commit)
    monkeypatch.setattr(on_worker, "read_outcome", lambda job, round: "read")
    monkeypatch.setattr(on_worker, "_committed", {})
    return SimpleNamespace(attempt=SimpleNamespace(token="writer", rounds=3))


def test_the_outcome_that_ends_a_window_is_held_until_it_is_read_once(job) -> None:
    after = outcome(1)
    commit_and_hold(job, after, None, None, closing=True)
    assert read_or_held(job, 1) is after
    assert read_or_held(job, 1) == "read"


def test_nothing_is_held_within_a_window_or_after_the_last_one(job) -> None:
    for round, stop, closing in ((1, None, False), (3, None, True), (2, "reached", True)):
        commit_and_hold(job, outcome(1), None, None, closing=True)
        commit_and_hold(job, outcome(round), stop, None, closing=closing)
        assert on_worker._committed == {}


def test_another_attempt_and_another_round_read_the_store(job) -> None:
    commit_and_hold(job, outcome(1), None, None, closing=True)
    other = SimpleNamespace(attempt=SimpleNamespace(token="other", rounds=3))
    assert read_or_held(other, 1) == "read"
    assert read_or_held(job, 2) == "read"
