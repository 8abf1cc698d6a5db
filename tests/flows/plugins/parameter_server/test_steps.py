"""What a server does with the updates that land, by item."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from roundweave import Algorithm, Apply, Mean, Partitions, Sgd, Split, State, Update
from roundweave.flows.plugins.parameter_server.orders import ServerRound
from roundweave.flows.plugins.parameter_server.steps import Pushed, serve
from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.commits import Arrival, InFlight, UpdateRecord
from roundweave.tasks.algorithms.maps.gradient import Downpour, Gradient
from roundweave.tasks.algorithms.when import Asynchronous
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.steps import Outcome

REASON = "direction of 1.weight has 1 non-finite of 2 numbers"


def work_of(when: Asynchronous, apply: Apply | None = None, partitions: int = 3, features: int = 2) -> Work:
    """A linear network: its weights, and the bias as the last of its numbers."""
    objective = Objective(ModelSpec("linear", (features,), 1, "float64", 0), "mse")
    algorithm = Algorithm(Gradient(), Mean(), apply or Sgd(1.0), when)
    return Work(objective, algorithm, Partitions(Digits(), Split(partitions), "float64"), 0)


def begun(work: Work, *params: float) -> Outcome:
    vector = {"float64": torch.tensor(params, dtype=torch.float64)}
    return Outcome(State(vector, memory=work.algorithm.apply.init(vector)))


def pushed(partition: int, *direction: float, weight: int = 1, refused: str | None = None) -> Pushed:
    update = Update({"float64": torch.tensor(direction, dtype=torch.float64)}, weight=weight)
    return Pushed(partition, update, UpdateRecord("", weight, refused, {"train_loss": 0.5}))


def step(work: Work, before: Outcome, *all_pushed: Pushed) -> Outcome:
    """A round in which these land; the last goes on from it."""
    partitions = tuple(each.partition for each in all_pushed)
    return serve(work, before, ServerRound(partitions, frozenset(partitions[-1:])), all_pushed)


def numbers(outcome: Outcome) -> list[float]:
    return outcome.state.params["float64"].tolist()


def same_but_for_the_round(left: State, right: State) -> bool:
    names = ("params", "buffers", "frozen")
    groups = [(getattr(left, n), getattr(right, n)) for n in names]
    groups += [(left.memory[slot], right.memory[slot]) for slot in left.memory | right.memory]
    return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in groups)


def test_each_update_is_applied_as_it_arrives_and_records_how_stale_it_was() -> None:
    work = work_of(Asynchronous())
    first = step(work, begun(work, 10.0, 10.0, 10.0), pushed(0, 1.0, 2.0, 3.0))
    second = step(work, first, pushed(2, 1.0, 1.0, 1.0))
    third = step(work, second, pushed(0, 4.0, 0.0, 0.0))
    assert [numbers(each) for each in (first, second, third)] == [[9, 8, 7], [8, 7, 6], [4, 7, 6]]
    assert [each.state.round for each in (first, second, third)] == [1, 2, 3]
    arrivals = [record.arrival for each in (first, second, third) for record in each.records.values()]
    assert arrivals == [Arrival(1, 0, 0), Arrival(1, 0, 1), Arrival(2, 1, 1)]
    assert second.records[2].metrics == {"train_loss": 0.5, "staleness": 1.0}
    assert third.server.in_flight == {0: InFlight(3, 3, 3), 1: InFlight(), 2: InFlight(2, 2, 2)}
    assert third.server.steps == 3


def test_what_is_too_stale_is_dropped_and_leaves_the_state_as_it_was() -> None:
    """Of a round that took none the next is not the staler."""
    work = work_of(Asynchronous(max_staleness=1), Sgd(1.0, momentum=0.5))
    outcome = begun(work, 0.0, 0.0, 0.0)
    for _ in range(2):
        outcome = step(work, outcome, pushed(0, 1.0, 1.0, 1.0))
    dropped = step(work, outcome, pushed(1, 5.0, 5.0, 5.0))
    assert dropped.records[1].refused == "staleness 2 is above 1"
    assert same_but_for_the_round(dropped.state, outcome.state)
    assert (dropped.state.round, dropped.server.steps, dropped.server.unsound) == (3, 2, ())
    assert dropped.server.in_flight[1] == InFlight(2, 3, 2)
    after = step(work, dropped, pushed(1, 1.0, 0.0, 0.0))
    assert (after.records[1].refused, after.records[1].arrival.staleness) == (None, 0)


def test_a_buffer_is_one_step_by_the_mean_of_its_updates() -> None:
    """By their weights, 1 and 3: (4 + 3 x 8) / 4 = 7. Who filled it goes on from the round."""
    work = work_of(Asynchronous(buffer=2), Sgd(1.0, momentum=0.5))
    one, three = pushed(0, 4.0, 0.0, 0.0), pushed(2, 8.0, 0.0, 4.0, weight=3)
    outcome = step(work, begun(work, 0.0, 0.0, 0.0), one, three)
    assert numbers(outcome) == [-7.0, 0.0, -3.0]
    assert outcome.state.memory["velocity"]["float64"].tolist() == [7.0, 0.0, 3.0]
    assert outcome.server.in_flight == {0: InFlight(2, 0, 0), 1: InFlight(), 2: InFlight(2, 1, 1)}
    assert outcome.server.steps == 1


# Unsound updates.


def test_an_unsound_update_is_quarantined_until_its_partition_has_a_sound_one() -> None:
    work = work_of(Asynchronous(), Sgd(1.0, momentum=0.5))
    first = step(work, begun(work, 1.0, 1.0, 1.0), pushed(0, 1.0, 1.0, 1.0))
    bad = step(work, first, pushed(1, float("nan"), 0.0, 0.0, refused=REASON))
    assert same_but_for_the_round(bad.state, first.state)
    assert (bad.records[1].refused, bad.server.unsound, bad.server.steps) == (REASON, (1,), 1)
    worse = step(work, bad, pushed(2, float("nan"), 0.0, 0.0, refused=REASON))
    assert worse.server.unsound == (1, 2)
    again = step(work, worse, pushed(1, 1.0, 0.0, 0.0))
    assert again.server.unsound == (2,)


def test_in_a_buffer_the_sound_ones_are_taken() -> None:
    work = work_of(Asynchronous(buffer=2))
    bad = pushed(0, float("nan"), 0.0, 0.0, refused=REASON)
    outcome = step(work, begun(work, 1.0, 1.0, 1.0), bad, pushed(1, 1.0, 2.0, 3.0))
    assert (numbers(outcome), outcome.server.unsound, outcome.server.steps) == ([0, -1, -2], (0,), 1)


def test_what_a_partition_carries_is_of_its_last_sound_update() -> None:
    """Also of one that was too stale: the replica goes on from where it is."""
    work = work_of(Asynchronous(max_staleness=0, fetch_every=2))
    work = replace(work, algorithm=replace(work.algorithm, map=Downpour(fetch_every=2)))
    outcome = step(work, begun(work, 0.0, 0.0, 0.0), pushed(0, 1.0, 1.0, 1.0))
    outcome = step(work, outcome, pushed(1, 1.0, 1.0, 1.0))
    assert outcome.records[1].refused == "staleness 1 is above 0"
    outcome = step(work, outcome, pushed(0, float("nan"), 1.0, 1.0, refused=REASON))
    assert outcome.carry_from == {0: 1, 1: 2}


def test_an_unsound_update_of_who_fetched_leaves_no_replica_of_before_the_fetch() -> None:
    """Pushes 1 and 3 begin with a fetch: push 4 goes on from what was fetched, not from push 2."""
    work = work_of(Asynchronous(fetch_every=2), partitions=2)
    work = replace(work, algorithm=replace(work.algorithm, map=Downpour(fetch_every=2)))
    sound, bad = pushed(0, 1.0, 1.0, 1.0), pushed(0, float("nan"), 1.0, 1.0, refused=REASON)
    outcome, sources = begun(work, 0.0, 0.0, 0.0), []
    for each in (sound, sound, bad, sound, bad, bad):
        outcome = step(work, outcome, each)
        sources.append(outcome.carry_from.get(0))
    assert sources == [1, 2, None, 4, None, None]


@pytest.mark.parametrize(
    ("max_staleness", "factors"), [(None, (1, 1 / 2, 1 / 3)), (1, (1, 1, 1 / 3)), (2, (1, 1, 1))]
)
def test_what_is_stale_is_scaled_by_one_over_one_more_than_its_staleness(max_staleness, factors) -> None:
    work = work_of(Asynchronous(max_staleness, stale="scale"))
    outcomes = [begun(work, 0.0, 0.0, 0.0)]
    for partition in range(3):
        outcomes.append(step(work, outcomes[-1], pushed(partition, 6.0, 0.0, -3.0)))
    assert all(each.records[p].refused is None for p, each in enumerate(outcomes[1:]))
    states = [outcome.state.params["float64"] for outcome in outcomes]
    moved = [(after - before).tolist() for before, after in pairwise(states)]
    assert moved == [[-6.0 * f, 0.0, 3.0 * f] for f in factors]


@pytest.mark.parametrize("size", [1e308, float("nan")])
def test_a_state_that_is_not_finite_fails_the_round(size: float) -> None:
    work = work_of(Asynchronous(), Sgd(10.0))
    with pytest.raises(RoundFailed, match=r"round 1: the new state is unsound, 1\.bias has 1 non-finite of 1"):
        step(work, begun(work, 0.0, 0.0, 0.0), pushed(0, 0.0, 0.0, size))
