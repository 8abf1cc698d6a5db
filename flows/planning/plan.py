"""``roundweave.plan``: strategies race, and the one that learns the most in the same seconds is chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from math import ceil

from flows.config.resolving import Resolved, work_of
from flows.config.train import Planned, Raced, TrainConfig
from flows.planning.racing import Race, behind, goal, race
from flows.planning.strategies import Strategy, strategies
from flows.planning.trying import Bench, Lane, thinned, trial_root
from flows.planning.workload import Workload, workload
from flows.reporting.listening import notice
from storage.errors import ClusterError
from tasks.data.partitions import Partition
from tasks.executors.base import Executor

HEAT = 1.5
"""Seconds of training of a heat at least, of all who race in it together."""

SHARE = 0.02
"""The share of what the run would take in one process that a heat takes, where that is longer."""

GAIN = 1.1
"""One process, and of such the one with fewer threads, may take so many times as long: less can go wrong in it."""


@dataclass(frozen=True)
class Plan:
    """The strategies that raced or were `refused`, what the race showed, the best first, and the `chosen` one."""

    config: TrainConfig
    work: Workload
    workers: int
    strategies: Mapping[str, Strategy]
    raced: Mapping[str, Raced]
    refused: Mapping[str, str]

    @property
    def chosen(self) -> Strategy:
        """One process where that is about as good as anything, with fewer threads where that is; else the best."""
        near = {name: row.behind for name, row in self.raced.items() if row.behind and row.behind <= GAIN}
        strategies = map(self.strategies.__getitem__, near)
        return min(strategies, key=lambda each: (each.executor != "inline", each.threads, near[each.name]))

    @property
    def reason(self) -> str:
        """Why it was chosen, in a sentence: beside the best of the others."""
        row = self.raced[self.chosen.name]
        told = f"{self.chosen.name} has a held-out loss of {row.loss:.3g} after {row.trained:.3g} s"
        others = {n: each.behind for n, each in self.raced.items() if each.behind and n != self.chosen.name}
        if not others or not row.behind:
            return f"{told}; nothing else came as far"
        best = min(others, key=others.__getitem__)
        return f"{told}; {best} takes {others[best] / row.behind:.2f} times as long to most that was learned"

    @property
    def planned(self) -> TrainConfig:
        """The configuration that does the work by the chosen strategy, with what the race showed."""
        planned = Planned(
            strategy=self.chosen.name,
            workers=self.workers,
            rounds_of_epoch=self.chosen.rounds(self.work),
            raced=dict(self.raced),
            refused=dict(self.refused),
            reason=self.reason,
        )
        return self.chosen.configured(self.config, self.work, planned=planned)


def plan(config: TrainConfig) -> Plan:
    """Have all strategies train for the same few seconds, from the same start, and choose one.

    Raises `UsageError` for work that depends on how it is distributed, `ClusterError` where nothing can do it.
    """
    work, plain = workload(config)
    with bench_for(config, work, plain) as bench:
        candidates = {each.name: each for each in strategies(work, bench.workers, os.cpu_count() or 1)}
        steps = bench.step_seconds([each for each in candidates.values() if each.executor == "inline"])
        heat = max(HEAT, SHARE * steps["single"] * ceil(work.examples / work.batch) * work.epochs)
        out = slower(candidates, steps) | too_long(candidates, steps, heat)
        lanes = {each.name: Lane(bench, each, steps.get(each.name)) for each in candidates.values()}
        ended = race({name: lane for name, lane in lanes.items() if name not in out}, heat)
        if not ended.last:
            raise ClusterError(f"no strategy can do this work here: {next(iter(ended.refused.values()))}")
        times = compared(lanes, ended)
        raced = {name: _raced(lanes[name], times.get(name)) for name in dict.fromkeys((*times, *ended.out))}
    return Plan(config, work, bench.workers, candidates, raced, out | dict(ended.refused))


def compared(lanes: Mapping[str, Lane], ended: Race) -> dict[str, float]:
    """How far behind the quickest is who was in the last heat, or had learned most before it was out."""
    most = goal({name: lanes[name].curve for name in (*ended.last, *ended.out)})
    near = [*ended.last, *(name for name in ended.out if lanes[name].curve[-1].loss <= most)]
    for name in near:
        lanes[name].refine()
    return behind({name: lanes[name].curve for name in near})


def _raced(lane: Lane, times: float | None) -> Raced:
    """What a strategy showed, which took so many times as long as the best."""
    point = lane.curve[-1]
    return Raced(
        loss=point.loss,
        accuracy=point.accuracy,
        trained=point.seconds,
        rounds=point.seconds / lane.seconds,
        seconds=lane.seconds,
        epoch=lane.seconds * lane.strategy.rounds(lane.bench.work),
        behind=times,
    )


def slower(candidates: Mapping[str, Strategy], steps: Mapping[str, float]) -> dict[str, str]:
    """Why strategies do not race that learn as others do, by threads that make their steps no faster."""
    reasons = {}
    for (name, taken), (other, least) in permutations(steps.items(), 2):
        one, rival = candidates[name], candidates[other]
        if one.batch == rival.batch and taken > least * (1 / GAIN if one.threads > rival.threads else GAIN):
            reasons[name] = f"its steps take {taken / least:.3g} times as long as those of {other}"
    return reasons


def too_long(candidates: Mapping[str, Strategy], steps: Mapping[str, float], heat: float) -> dict[str, str]:
    """Why strategies of several workers do not race: they spare little of rounds so long, and learn the less.

    Those of one process learn the same in shorter ones.
    """
    taken = {name: each.steps * steps["single"] for name, each in candidates.items() if name not in steps}
    told = "a round would take {:.3g} s, longer than a heat of {:.3g} s"
    return {name: told.format(seconds, heat) for name, seconds in taken.items() if seconds > heat}


@contextmanager
def bench_for(config: TrainConfig, work: Workload, plain: Resolved) -> Iterator[Bench]:
    """Executors on the same cluster, and a root for trials."""
    from tasks.clusters.connecting import connect
    from tasks.clusters.workers import usable_workers
    from tasks.executors.gang import GangExecutor
    from tasks.executors.graph import GraphExecutor
    from tasks.executors.inline import InlineExecutor

    cluster = connect(config.scheduler, config.workers, config.private, config.wait_for_workers)
    with cluster as client, trial_root(config.root) as root:
        given = (client, config.worker_timeout, notice)
        executors: dict[str, Executor] = {
            "inline": InlineExecutor(config.worker_timeout, notice),
            "graph": GraphExecutor(*given),
            "gang": GangExecutor(*given, plain=config.plain_ranks),
            "auto": GangExecutor(*given, choosing=True, plain=config.plain_ranks, seconds=0.0),
        }
        scoring = replace(work_of(plain, executors["inline"])[0], threads=os.cpu_count() or 1)
        examples = plain.partitions.load(0, 0)
        held_out = Partition(examples.train, thinned(examples.held_out))
        yield Bench(config, work, executors, len(usable_workers(client)), root, scoring, held_out)
