"""A race by sums that can be done by hand, of racers that need no seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest

from roundweave.flows.plugins.race.racing import Point, behind, cut_curve, goal, loss_at, race, ranked, seconds_to
from roundweave.storage.errors import RoundFailed


@dataclass
class Racer:
    """Learns so much a second; or fails once it is to train for so long."""

    speed: float
    fails: float = float("inf")
    curve: list[Point] = field(default_factory=list)

    def train(self, until: float) -> None:
        if until > self.fails:
            raise RoundFailed("it fell")
        self.curve.append(Point(until, 10 - self.speed * until))


def test_a_third_goes_on_to_a_heat_as_long_until_two_are_left() -> None:
    racers = {f"speed {speed}": Racer(speed) for speed in range(1, 10)}
    ended = race(racers, heat=9)
    # Nine race for a second each, three of them for three more, two for 4.5 more.
    assert [point.seconds for point in racers["speed 9"].curve] == [1, 4, 8.5]
    assert [len(racers[f"speed {speed}"].curve) for speed in range(1, 10)] == [1, 1, 1, 1, 1, 1, 2, 3, 3]
    assert (ended.last, ended.out[:3]) == (["speed 9", "speed 8"], ["speed 7", "speed 6", "speed 5"])
    assert ended.refused == {}


def test_who_fails_is_refused_by_the_reason_wherever_it_was() -> None:
    racers = {"never": Racer(9, fails=0), "later": Racer(8, fails=2), "slow": Racer(1), "slower": Racer(0.5)}
    ended = race(racers, heat=4)
    assert ended.refused == {"never": "it fell", "later": "it fell"}
    assert ended.last == ["slow"]  # which went on to the heat in which the other failed
    assert ended.out == ["slower"]


def test_a_race_that_all_lose_has_no_best() -> None:
    ended = race({"one": Racer(1, fails=0), "two": Racer(1, fails=0)}, heat=1)
    assert (ended.last, ended.out, len(ended.refused)) == ([], [], 2)


def test_it_ends_when_all_have_trained_for_the_length_of_the_run() -> None:
    racers = {f"speed {speed}": Racer(speed) for speed in range(1, 10)}
    ended = race(racers, heat=9, length=lambda: 3)
    assert [len(racer.curve) for racer in racers.values()] == [1, 1, 1, 1, 1, 1, 2, 2, 2]
    assert (ended.last, ended.seconds, ended.whole) == (["speed 9", "speed 8", "speed 7"], 3, True)
    ended = race({f"speed {speed}": Racer(speed) for speed in range(1, 10)}, heat=9, length=lambda: 10)
    assert (len(ended.last), ended.seconds, ended.whole) == (2, 8.5, False)


def test_a_run_that_is_over_learns_no_more() -> None:
    over, going_on = [Point(1, 4.0), Point(2, 3.0), Point(inf, 3.0)], [Point(1, 5.0), Point(4, 2.0)]
    assert ranked({"over": over, "going on": going_on}, 4) == ["going on", "over"]
    assert ranked({"over": over, "going on": going_on}, 2) == ["over", "going on"]
    assert cut_curve(over, 4) == [Point(1, 4.0), Point(2, 3.0), Point(4, 3.0)]
    assert cut_curve(going_on, 2) == [Point(1, 5.0), Point(2, pytest.approx(3.5))]
    assert cut_curve(going_on, 5) == going_on


def test_losses_are_compared_after_as_many_seconds() -> None:
    # At 2 s, halfway from 1 s to 4 s as time grows by factors, one has 3 and the other 2.9.
    longer, other = [Point(1, 4.0), Point(4, 2.0)], [Point(1, 5.0), Point(2, 2.9)]
    assert loss_at(longer, 2) == pytest.approx(3)
    assert ranked({"longer": longer, "other": other}, 8) == ["other", "longer"]
    assert loss_at(longer, 0.5) == 4  # before its first point nothing is known
    assert loss_at(longer, 8) == 2


def test_behind_is_how_many_times_as_long_it_takes_to_most_that_can_be_learned() -> None:
    # From a loss of 102 the best came down to 2: 95 % of it is done at a loss of 7, after 2 s and after 6 s.
    start = Point(0.001, 102.0)
    best = [start, Point(4, 8.0), Point(9, 6.0), Point(20, 2.0)]
    quick = [start, Point(1, 9.0), Point(4, 5.0)]
    most = goal({"best": best, "quick": quick})
    assert most == pytest.approx(7)
    assert seconds_to(best, 7) == pytest.approx(6)
    assert seconds_to(quick, 7) == pytest.approx(2)
    assert list(behind({"best": best, "quick": quick}, most).items()) == [("quick", 1), ("best", pytest.approx(3))]


def test_who_has_not_come_so_far_is_compared_by_its_last_loss() -> None:
    # It has a loss of 8 after 10 s, which the quickest has after 2 s, halfway from 1 s to 4 s.
    start = Point(0.001, 102.0)
    quick, slow = [start, Point(1, 14.0), Point(4, 2.0)], [start, Point(1, 50.0), Point(10, 8.0)]
    assert behind({"slow": slow, "quick": quick}, 7) == pytest.approx({"quick": 1, "slow": 5})
    assert behind({"only": slow}, 8) == {"only": 1}


def test_where_no_loss_falls_the_lowest_is_the_best_and_others_are_not_compared() -> None:
    start = Point(0.001, 2.0)
    curves = {"bad": [start, Point(1, 5.0)], "worse": [start, Point(1, 6.0)]}
    assert goal(curves) == 5
    assert behind(curves, goal(curves)) == {"bad": 1}
    assert goal(curves | {"good": [start, Point(1, 1.0)]}) == pytest.approx(1.05)
    assert list(behind(curves | {"good": [start, Point(1, 1.0)]}, 1.05)) == ["good"]
