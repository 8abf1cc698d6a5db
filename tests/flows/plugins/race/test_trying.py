"""What a round takes, and what rounds that are too long to be tried will take."""

from __future__ import annotations

import shutil
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import roundweave as rw
from roundweave.flows.plugins.race.choosing import bench_for
from roundweave.flows.plugins.race.racing import Point
from roundweave.flows.plugins.race.strategies import strategies, workload
from roundweave.flows.plugins.race.trying import SCORED, Lane, TrialTiming, thinned


def timing(*heats: list[float], mapped: float = 0.0) -> TrialTiming:
    made = TrialTiming()
    for heat in heats:
        made.begin()
        for now in heat:
            made.tick(now, mapped)
    return made


def test_the_first_round_of_a_turn_is_not_measured() -> None:
    # It ends after 6 s, and so does that of the next heat; a round takes 0.5 s otherwise.
    made = timing([6, 6.5, 7], [26, 26.5])
    assert (made.rounds, made.seconds) == (3, 1.5)


def test_short_rounds_are_not_measured_before_all_is_warm() -> None:
    made = timing([0.012 * round for round in range(10)])
    assert (made.rounds, made.seconds) == (5, pytest.approx(0.06))  # the first five are over within 0.05 s


def test_long_rounds_are_drawn_out_linearly() -> None:
    # A round takes 0.3 s, of which 0.2 are the slowest map of 10 steps: of 100 steps it takes 0.1 + 10 * 0.2.
    made = timing([1.3, 1.6, 1.9], mapped=0.2)
    assert [made.drawn_out(by) for by in (0, 1, 10)] == pytest.approx([0.1, 0.3, 2.1])
    # Maps never take longer than their rounds, as where the next round is mapped beside the commit.
    assert timing([1.3, 1.6, 1.9], mapped=0.5).drawn_out(10) == pytest.approx(3)


def test_held_out_examples_are_thinned_from_first_to_last() -> None:
    rows = torch.arange(2 * SCORED + 1).float()
    thin = thinned(rw.Examples(rows[:, None], rows))
    assert len(thin) <= SCORED
    assert thin.targets[-1] == rows[-3]
    assert len(thinned(rw.Examples(rows[:7, None], rows[:7]))) == 7


@pytest.fixture
def lane(tmp_path: Path):
    """A lane for one process on digits, whose epoch has 51 steps."""
    config = rw.TrainConfig(data="digits", algorithm="auto", workers=1, rounds=2, root=tmp_path)
    work, plain = workload(config)
    single = next(strategies(work, 1, 1))
    with bench_for(config, work, plain) as bench:
        yield lambda steps: Lane(bench, single, steps)


def test_shorter_rounds_learn_the_same_until_the_run_is_over(lane) -> None:
    shortened = lane(steps=10)
    shortened.train(0.3)
    assert shortened.worth == pytest.approx(shortened.seconds * 10 / 51)
    assert shortened.whole == 11  # two epochs of 51 steps
    first = shortened.curve
    assert first[0].loss == pytest.approx(2.3, abs=0.1)  # of ten classes before anything is learned
    assert first[1].seconds == pytest.approx(min(0.3, 11 * shortened.worth), abs=shortened.worth)
    shortened.train(max(40, shortened.rounds) * shortened.worth + 0.1)  # however long a round takes now
    losses = [point.loss for point in shortened.points]
    assert losses == sorted(losses, reverse=True)
    assert shortened.points[-1].seconds == 11 * shortened.worth
    assert shortened.curve[-1] == Point(inf, shortened.points[-1].loss)
    shortened.refine()
    assert len(shortened.points) > 3


def test_a_turn_that_is_over_trains_no_more(lane) -> None:
    whole = lane(steps=51)
    whole.train(0.05)
    done = whole.rounds
    whole.train(0.0)
    assert (whole.seconds, whole.rounds) == (whole.worth, done)


@pytest.mark.thorough
def test_a_trial_needs_no_room_for_all_rounds_that_it_might_run(lane, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    tried = lane(steps=51)
    tried.train(0.05)
    assert tried.rounds > 0
