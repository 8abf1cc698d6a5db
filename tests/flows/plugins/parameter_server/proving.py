"""Small asynchronous runs, and what must be true of their order of arrival."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import roundweave as rw
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.tasks.data.description import gather_here
from tests.tasks.executors.deeds import identities

SMALL = {"model": "logistic", "partitions": 4}

CARRIED = {"momentum": 0.9, "optimizer_state": "carried"}
ADAM = {"optimizer": "AdamW", "optimizer_state": "carried"}
ASYNC = {"algorithm": "async_sgd", "momentum": 0.5}
EASGD = {"algorithm": "easgd", "local_steps": 2, "elasticity": 0.3}
FED_BUFF = {"algorithm": "fed_buff", "local_steps": 2}
RUNS: dict[str, dict[str, object]] = {
    "async_sgd": ASYNC | {"fetch_every": 2, "stale": "scale"},
    "async_sgd-stale": {"algorithm": "async_sgd", "max_staleness": 1},
    "async_sgd-cohort": ASYNC | {"cohort": 2, "max_staleness": 2},
    "downpour": {"algorithm": "downpour", "fetch_every": 4, "push_every": 2, "max_staleness": 2},
    "downpour-cohort": {"algorithm": "downpour", "cohort": 3, "fetch_every": 2, "push_every": 2},
    "easgd": EASGD,
    "easgd-carried": EASGD | CARRIED,
    "easgd-cohort": EASGD | CARRIED | {"cohort": 2, "cohort_by_size": True},
    "fed_buff": FED_BUFF | {"buffer": 3, "outer_momentum": 0.5},
    "fed_buff-carried": FED_BUFF | ADAM | {"buffer": 3},
    "fed_buff-cohort": FED_BUFF | {"buffer": 2, "cohort": 0.75},
}


def prove(train: Callable[..., rw.Run], run: rw.Run, **fields: object) -> None:
    """A run is sound, its rounds replay, and its recorded order gives the same run without a cluster."""
    assert run.verify().sound
    assert rw.open_run(run.path).replay("all", trust=True).identical
    again = train(**fields, order=f"recorded:{run.path}", name=f"{run.name}-again")
    assert identities(again) == identities(run)
    staleness_by_the_rows(run, int(str(fields["partitions"])))


def mapped_by(run: rw.Run) -> Counter[str]:
    """How many updates each process has mapped."""
    return Counter(u.worker for n in range(1, run.done + 1) for u in run.round(n).commit.updates.values())


def staleness_by_the_rows(run: rw.Run, partitions: int) -> None:
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


def pushes_by_the_draws(run: rw.Run, partitions: int) -> Iterator[tuple[int, int]]:
    """The pushes in the order in which they arrived: each of who was to compute then, under its own number."""
    dealt = describe(plan(rw.TrainConfig.model_validate(run.config)), gather_here).partitions
    sizes, size = dealt.sizes(0), dealt.taking_part
    pushes = dict.fromkeys(range(partitions), 1)
    if dealt.sampler:
        pushes = dict.fromkeys(dealt.sampler.draw(0, 0, sizes), 1)
    arrived = 0
    for round in range(1, run.done + 1):
        for partition in run.round(round).commit.updates:
            arrived += 1
            push = pushes.pop(partition)
            yield partition, push
            following = dealt.sampler.draw_next(0, arrived, sizes, pushes) if dealt.sampler else partition
            pushes[following] = 1 + (arrived if dealt.sampler else push)
        in_flight = run.round(round).commit.server.in_flight
        assert {each: item.push for each, item in in_flight.items()} == pushes
        assert len(pushes) == size
