"""``roundweave.plan``: strategies race, and the strategy that learns the most in the same seconds is chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from math import ceil, inf
from typing import Any

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import Described
from roundweave.flows.planning.naming import configure
from roundweave.flows.plugins.race.racing import MOST, Curve, Race, behind, cut_curve, goal, race
from roundweave.flows.plugins.race.results import Planned, Raced
from roundweave.flows.plugins.race.strategies import (
    DISTRIBUTING,
    Strategy,
    Workload,
    larger_batch,
    strategies,
    workload,
)
from roundweave.flows.plugins.race.trying import Bench, Lane, thinned, trial_root
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import ClusterError, RoundFailed, UsageError
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.data.loading import Partition
from roundweave.tasks.executors.base import EXECUTORS, Executor, Setting

HEAT = 1.5
"""The fewest seconds of training in a heat, of all racers together."""

SHARE = 0.02
"""The share of the run's seconds in one process that a heat takes, if that is longer."""

FITTING = 3
"""The fewest rounds of a strategy that must fit into its first heat; else it is tried in shorter rounds."""

GAIN = 1.1
"""A strategy of one process, or of fewer threads, is chosen if it takes at most this many times as long."""

DECIDED = ("executor", "partitions", "threads", "evaluate_every", "quorum", "ranks", "units", "hybrid")
"""Fields of a configuration that a strategy decides for a run, besides the algorithm and the number of rounds."""


@dataclass(frozen=True)
class RaceResult:
    """The result of a race of strategies. `plan` returns it.

    Args:
        config: The run that was planned.
        work: What a strategy must compute.
        workers: The number of worker processes.
        strategies: All strategies that can run, by name.
        raced: The result of each strategy, the best first.
        refused: The reasons why other strategies cannot run, by name.
        length: The seconds of the run in one process if it is shorter than the race, else None.

    Example:
        >>> def slowest_first(plan: rw.RaceResult) -> list[str]:
        ...     return list(reversed(plan.raced))
    """

    config: TrainConfig
    work: Workload
    workers: int
    strategies: Mapping[str, Strategy]
    raced: Mapping[str, Raced]
    refused: Mapping[str, str]
    length: float | None = None

    @property
    def chosen(self) -> Strategy:
        """The best strategy. A strategy of one process or of fewer threads is preferred if it is about as good."""
        near = {name: row.behind for name, row in self.raced.items() if row.behind and row.behind <= GAIN}
        strategies = map(self.strategies.__getitem__, near)
        return min(strategies, key=lambda each: (each.distributed, each.threads, near[each.name]))

    @property
    def reason(self) -> str:
        """Why the strategy was chosen: one line that compares it with the best of the others."""
        chosen = self.chosen.name
        others = {name: row.behind for name, row in self.raced.items() if row.behind and name != chosen}
        best, own = min(others, key=others.__getitem__, default=None), self.raced[chosen].behind
        if best is None or not own:
            return f"{self._shown(chosen)}; no other way of training came as far"
        if self.length is not None:
            ends = f"the whole run takes {self.length:.2g} s in one process, so losses are compared at its end"
            return f"{self._shown(chosen)}; {self._shown(best)}; {ends}"
        times = f"takes {others[best] / own:.2f} times as long to come {MOST:.0%} of the way to the lowest loss"
        return f"{self._shown(chosen)}; {self._named(best)} {times}"

    def _shown(self, name: str) -> str:
        row = self.raced[name]
        return f"{self._named(name)} has a held-out loss of {row.loss:.3g} after {row.trained:.2g} s of training"

    def _named(self, name: str) -> str:
        """A strategy's name, with its learning rate if that differs from the configuration's."""
        strategy = self.strategies[name]
        if strategy.batch <= self.work.batch:
            return name
        return f"{name} (learning rate {strategy.changes(self.config, self.work)['algorithm']['lr']:g})"

    @property
    def planned(self) -> TrainConfig:
        """The configuration that trains with the chosen strategy and records the results of the race."""
        planned = Planned(
            strategy=self.chosen.name,
            workers=self.workers,
            rounds_of_epoch=self.chosen.rounds(self.work),
            raced=dict(self.raced),
            refused=dict(self.refused),
            reason=self.reason,
        )
        return self.chosen.configured(self.config, self.work, planned=planned.model_dump(exclude_none=True))


def plan(config: TrainConfig) -> RaceResult:
    """Race all strategies from the same start for the same few seconds, and choose the best.

    Args:
        config: The run to plan. Its own strategy takes part in the race.

    Returns:
        The result of the race, with the chosen strategy.

    Raises:
        UsageError: The results would depend on the distribution, for example on the number of partitions.
        RoundFailed: One process cannot take the steps, for example because the learning rate is too large.
        ClusterError: Every strategy failed.

    Example:
        >>> plan = rw.plan(rw.TrainConfig(rounds=1, partitions=2, workers=1, local_steps=1))
        >>> plan.chosen.name, plan.reason
    """
    config = configure(config)
    work, plain = workload(config)
    with bench_for(config, work, plain) as bench:
        candidates = {each.name: each for each in strategies(work, bench.workers, os.cpu_count() or 1)}
        steps, failed = timed(bench, candidates)
        heat = max(HEAT, SHARE * steps["single"] * ceil(work.examples / work.batch) * work.epochs)
        refused = slower(candidates, steps) | too_long(candidates, steps, heat) | failed
        racing = [each for each in candidates.values() if each.name not in refused]
        lanes = {each.name: Lane(bench, each, tried_steps(each, steps, heat / len(racing))) for each in racing}
        ended = race(lanes, heat, lambda: run_seconds(lanes))
        if not ended.last:
            raise ClusterError(f"no strategy can do this work here: {next(iter(ended.refused.values()))}")
        times = compared(lanes, ended)
        names = dict.fromkeys((*times, *ended.last, *ended.out))
        raced = {name: _raced(lanes[name], times.get(name)) for name in names}
    length = ended.seconds if ended.whole else None
    return RaceResult(config, work, bench.workers, candidates, raced, refused | dict(ended.refused), length)


def chosen(config: TrainConfig, run: StoredRun | None) -> TrainConfig:
    """The configuration with the strategy that its run was begun with, or that a race chooses for a new run."""
    if run is not None:
        return _as_begun(config, run.config)
    notice("auto: comparing training strategies")
    made = plan(config)
    notice(f"auto: {made.reason}")
    return made.planned


def _as_begun(config: TrainConfig, recorded: Mapping[str, Any]) -> TrainConfig:
    """The configuration with the strategy that the run was begun with, and as many epochs as it asks for now."""
    if not recorded.get("planned"):
        raise UsageError(f"{config.name} was not begun by auto; name its algorithm, or give another name")
    begun = {name: recorded[name] for name in (*DECIDED, "planned") if name in recorded}
    given = config.algorithm.model_dump(exclude={"name", *DISTRIBUTING}, exclude_unset=True)
    batch, own = recorded["algorithm"]["batch_size"], config.algorithm.options["batch_size"]
    if batch > own:
        given |= larger_batch(batch, own, config.algorithm.options["lr"])
    rounds = ceil(config.rounds * Planned(**recorded["planned"]).rounds_of_epoch)
    kept = config.model_dump(exclude={"planned"}, exclude_unset=True)
    return TrainConfig(**kept | begun | {"algorithm": recorded["algorithm"] | given, "rounds": rounds})


def tried_steps(strategy: Strategy, steps: Mapping[str, float], heat: float) -> int:
    """The local steps of a round in which a strategy is tried: its own number, or fewer in one process.

    One process learns the same in shorter rounds. `steps` has the seconds of a step by the name of each strategy
    of one process, `heat` is the seconds that each strategy trains in the first heat.
    """
    seconds = steps.get(strategy.name, 0.0)
    return min(strategy.steps, max(1, int(heat / FITTING / seconds))) if seconds else strategy.steps


def run_seconds(lanes: Mapping[str, Lane]) -> float:
    """The seconds of the whole run in one process, the slowest way to do it there; infinite if none has raced."""
    ways = (lane for lane in lanes.values() if not lane.strategy.distributed and lane.timing.rounds)
    return max((lane.whole * lane.worth for lane in ways), default=inf)


def compared(lanes: Mapping[str, Lane], ended: Race) -> dict[str, float]:
    """How many times as long as the quickest each strategy takes to the same loss.

    Compared are the strategies of the last heat, and those that were out but had reached that loss. It is the
    lowest loss if the race covered the whole run, else the loss at 95 % of the way to the lowest one.
    """

    def curves(names: Sequence[str]) -> dict[str, Curve]:
        return {name: cut_curve(lanes[name].curve, ended.seconds) for name in names}

    share, near = 1.0 if ended.whole else MOST, [*ended.last]
    for name in near:
        lanes[name].refine()
    rivals = [] if ended.whole else ended.out
    loss = goal(curves([*near, *rivals]), share)
    for name in rivals:
        if lanes[name].curve[-1].loss <= loss:
            lanes[name].refine()
            near.append(name)
    return behind(curves(near), loss)


def _raced(lane: Lane, times: float | None) -> Raced:
    """A strategy's result; `times` says how many times as long as the best it took, None if not compared."""
    point = lane.points[-1]
    return Raced(
        loss=point.loss,
        accuracy=point.accuracy,
        trained=point.seconds,
        rounds=point.seconds / lane.seconds,
        seconds=lane.seconds,
        epoch=lane.seconds * lane.strategy.rounds(lane.bench.work),
        behind=times,
    )


def timed(bench: Bench, candidates: Mapping[str, Strategy]) -> tuple[dict[str, float], dict[str, str]]:
    """The seconds of a step of each strategy of one process, and the reasons of those whose steps fail.

    Raises `RoundFailed` if `single` is one of them, by which all others are measured.
    """
    steps: dict[str, float] = {}
    failed: dict[str, str] = {}
    for each in candidates.values():
        try:
            if not each.distributed:
                steps[each.name] = bench.step_seconds(each)
        except RoundFailed as error:
            failed[each.name] = f"{error}; try a smaller lr, or check the data"
    if "single" in failed:
        raise RoundFailed(f"single: {failed['single']}")
    return steps, failed


def slower(candidates: Mapping[str, Strategy], steps: Mapping[str, float]) -> dict[str, str]:
    """Reasons why strategies of one process do not race: their number of threads makes steps no faster."""
    reasons = {}
    for (name, taken), (other, least) in permutations(steps.items(), 2):
        one, rival = candidates[name], candidates[other]
        if one.batch == rival.batch and taken > least * (1 / GAIN if one.threads > rival.threads else GAIN):
            reasons[name] = f"its steps take {taken / least:.3g} times as long as those of {other}"
    return reasons


def too_long(candidates: Mapping[str, Strategy], steps: Mapping[str, float], heat: float) -> dict[str, str]:
    """Reasons why strategies of several workers do not race: their rounds are longer than a heat.

    Strategies of one process are left out, as they learn the same in shorter rounds.
    """
    taken = {name: each.steps * steps["single"] for name, each in candidates.items() if name not in steps}
    reason = "a round would take {:.3g} s, longer than a heat of {:.3g} s"
    return {name: reason.format(seconds, heat) for name, seconds in taken.items() if seconds > heat}


@contextmanager
def bench_for(config: TrainConfig, work: Workload, plain: Described) -> Iterator[Bench]:
    """Provide executors on one cluster and a temporary root for the trials of strategies."""
    from roundweave.tasks.executors.clusters.connecting import connect
    from roundweave.tasks.executors.clusters.workers import usable_workers

    placed = config.scheduler, config.workers, config.private, config.wait_for_workers
    cluster = connect(*placed, certificates=config.certificates)
    with cluster as client, trial_root(config.root) as root:
        setting = Setting(**config.placed, round_seconds=0.0)
        executors: dict[str, Executor] = {
            name: entry.load()(*[client] * entry.distributed, setting) for name, entry in EXECUTORS.items()
        }
        scoring = replace(plain.work, threads=os.cpu_count() or 1, mapper=Mapper(), scorers=plain.work.scorers[:1])
        held_out = plain.partitions.held_out_part(0, 0, plain.partitions.split.partitions)
        examples = Partition(plain.partitions.load(0, 0), (thinned(held_out),))
        yield Bench(config, work, executors, len(usable_workers(client)), root, scoring, examples)
