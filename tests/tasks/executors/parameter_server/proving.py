"""Small asynchronous runs, and what must be true of their order of arrival."""

from __future__ import annotations

from collections.abc import Iterator

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.stored import Run

ROUNDS = 12
SMALL = {"model": "logistic", "partitions": 3, "rounds": ROUNDS}

RUNS: dict[str, dict[str, object]] = {
    "async_sgd": {"algorithm": "async_sgd", "fetch_every": 2, "momentum": 0.5, "stale": "scale"},
    "async_sgd-stale": {"algorithm": "async_sgd", "max_staleness": 1},
    "downpour": {"algorithm": "downpour", "fetch_every": 4, "push_every": 2, "max_staleness": 2},
    "easgd": {"algorithm": "easgd", "local_steps": 2, "elasticity": 0.3},
    "fed_buff": {"algorithm": "fed_buff", "local_steps": 2, "buffer": 2, "outer_momentum": 0.5},
    "fed_buff-cohort": {"algorithm": "fed_buff", "local_steps": 2, "buffer": 2, "partitions": 7, "cohort": 3},
    "easgd-cohort": {"algorithm": "easgd", "local_steps": 2, "partitions": 5, "cohort": 2, "cohort_by_size": True},
}


def identities(run: Run) -> list[tuple[object, ...]]:
    """What the rounds of a run are, whoever made them."""
    return [run.round(round).commit.identity() for round in range(run.done + 1)]


def staleness_by_the_rows(run: Run, partitions: int) -> None:
    """An update is as stale as rounds that took one came between the row that it began from and its own."""
    commits = [run.round(round).commit for round in range(run.done + 1)]
    took = [any(update.refused is None for update in commit.updates.values()) for commit in commits]
    pushes = list(pushes_by_the_draws(run, partitions))
    for commit in commits[1:]:
        for partition, update in commit.updates.items():
            arrival = update.arrival
            assert (partition, arrival.push) == pushes.pop(0)
            assert arrival.version < commit.round
            assert arrival.staleness == sum(took[arrival.version + 1 : commit.round])


def pushes_by_the_draws(run: Run, partitions: int) -> Iterator[tuple[int, int]]:
    """The pushes in the order in which they arrived: each of who was to compute then, under its own number."""
    dealt = resolve(TrainConfig.model_validate(run.config)).partitions
    sizes, size = dealt.sizes(0), dealt.taking_part
    pushes = dict.fromkeys(range(partitions), 1)
    if dealt.cohort:
        pushes = dict.fromkeys(dealt.cohort.draw(0, 0, sizes), 1)
    arrived = 0
    for round in range(1, run.done + 1):
        for partition in run.round(round).commit.updates:
            arrived += 1
            push = pushes.pop(partition)
            yield partition, push
            following = dealt.cohort.draw_next(0, arrived, sizes, pushes) if dealt.cohort else partition
            pushes[following] = 1 + (arrived if dealt.cohort else push)
        in_flight = run.round(round).commit.server.in_flight
        assert {each: item.push for each, item in in_flight.items()} == pushes
        assert len(pushes) == size
