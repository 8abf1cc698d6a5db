"""Simulates one round of each kind of schedule; links and the scheduler serve requests in order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from flows.planning.simulating.costs import Costs, SimulatedCluster
from tasks.executors.graph import FAN_IN
from tasks.process_group.reduce_scatter import pays
from tasks.rounds.plan import RoundPlan

MESSAGE = 3e-4
"""CPU seconds of a rank per message to another: 0.2 to 0.4 ms were measured with 2 to 16 (docs/scaling.md)."""

SLOW, HOW_SLOW = range(2)
"""The two random numbers of each map: whether it is slow, and how slow."""

Trail = tuple[tuple[str, float], ...]
"""The critical path of a round: pairs of what the time was spent on, and the second at which that ended."""


def book(free: list[float], now: float, seconds: float) -> float:
    """The time at which the first free server has done work that arrives `now` and takes so many seconds.

    `free` is a heap of the times at which each of several equal servers (links, or the scheduler) becomes free.
    """
    done = max(now, free[0]) + seconds
    heapreplace(free, done)
    return done


@dataclass(frozen=True)
class Setting:
    """A simulated work on `workers` workers of a cluster, with `steps` local steps in each map."""

    costs: Costs
    cluster: SimulatedCluster
    workers: int
    steps: int
    seed: int = 0

    def of(self, worker: int) -> int:
        """The number of the machine on which a worker runs."""
        return worker // self.cluster.cores

    @property
    def map_seconds(self) -> float:
        """The seconds of a map that is no straggler."""
        return self.steps * self.costs.step

    @property
    def transfer(self) -> float:
        """The seconds in which a link sends a state or an update; 0 if all workers are on one machine."""
        return self.costs.state / self.cluster.bandwidth if self.workers > self.cluster.cores else 0.0

    @property
    def fold_seconds(self) -> float:
        """The seconds to add one update to another."""
        return self.costs.state * self.costs.fold

    def factors(self, round: int) -> list[float]:
        """How many times as long each worker's map takes: 1, for a straggler a Pareto-distributed number above 1.

        A worker's number does not depend on the number of workers or on the schedule.
        """
        draws = (np.random.default_rng((what, self.seed, round)).random(self.workers) for what in (SLOW, HOW_SLOW))
        slow, how = draws
        factors = np.where(slow < self.cluster.stragglers, (1 - how) ** (-1 / self.cluster.tail), 1.0)
        return list(factors.tolist())


def ranks(setting: Setting, round: int) -> Trail:
    """A round of ranks: after the maps, updates go around a ring; of large ones each rank reduces a part."""
    mapped, others = setting.map_seconds, setting.workers - 1
    shared = pays(setting.costs.state, setting.workers)
    parts, times = (1 / setting.workers, 2) if shared else (1.0, 1)
    said = times * others * MESSAGE
    if setting.workers > setting.cluster.cores:  # else memory is shared; over a link a size precedes the bytes
        said = 2 * (said + times * others * setting.cluster.latency)
    slowest = mapped * max(setting.factors(round))
    linked = slowest + said + times * others * parts * setting.transfer
    folded = linked + others * parts * setting.fold_seconds
    return (
        ("maps", mapped),
        ("stragglers", slowest),
        ("messages", slowest + said),
        ("links", linked),
        ("fold", folded),
    )


def graph(setting: Setting, round: int) -> Trail:
    """A round of tasks: the scheduler sends and collects each task; a tree of tasks reduces the updates."""
    scheduler, links = [0.0], [[0.0] for _ in range(setting.of(setting.workers - 1) + 1)]
    task, latency = setting.costs.task / 2, setting.cluster.latency
    tree = [*RoundPlan(setting.workers, setting.workers).folds(FAN_IN)]
    tree.append([range(len(tree[-1]) if tree else setting.workers)])
    nodes = [[node for node, children in enumerate(level) for _ in children] for level in tree]
    missing = [[len(children) for children in level] for level in tree]
    places = [[setting.of(worker) for worker in range(setting.workers)]]
    done = [(way[-1][1], 0, worker, way) for worker, way in enumerate(_maps(setting, scheduler, round))]
    heapify(done)
    while True:  # takes the finished tasks in the order in which the scheduler hears of them
        now, level, child, trail = heappop(done)
        trail += (("scheduler", book(scheduler, now, task)),)
        if level == len(tree):
            return trail
        if len(places) == level + 1:
            places.append([places[level][children.start] for children in tree[level]])
        node = nodes[level][child]
        missing[level][node] -= 1
        if missing[level][node]:
            continue
        children, machine = tree[level][node], places[level + 1][node]
        handed = book(scheduler, trail[-1][1], task)
        others = sum(places[level][each] != machine for each in children)
        there = book(links[machine], handed + latency, others * setting.transfer)
        folded = there + (len(children) - 1) * setting.fold_seconds
        way = ("scheduler", handed), ("reducer's link", there), ("reducer's CPU", folded)
        heappush(done, (folded + latency, level + 1, node, (*trail, *way, ("messages", folded + latency))))


def _maps(setting: Setting, scheduler: list[float], round: int) -> Iterator[Trail]:
    """The trails of all maps; a machine that has the state sends it to other machines, one at a time."""
    latency, holders, there = setting.cluster.latency, [0.0], {0: 0.0}
    for worker, factor in enumerate(setting.factors(round)):
        handed = book(scheduler, 0.0, setting.costs.task / 2)
        machine = setting.of(worker)
        if machine not in there:
            there[machine] = book(holders, handed + 2 * latency, setting.transfer)
            heappush(holders, there[machine])
        began = max(handed + latency, there[machine])
        mapped, slow = began + setting.map_seconds, began + setting.map_seconds * factor
        way = ("scheduler", handed), ("state's way", began), ("maps", mapped), ("stragglers", slow)
        yield (*way, ("messages", slow + latency))


def server(setting: Setting, round: int) -> Trail:
    """A round of a parameter server, one push of each worker; it takes as long as its busiest resource."""
    busy = {
        "maps": setting.map_seconds * sum(setting.factors(round)) / setting.workers,
        "scheduler": setting.workers * setting.costs.task,
        "links": setting.workers * setting.transfer,
        "server": setting.workers * (setting.fold_seconds + setting.costs.round),
    }
    busiest = max(busy, key=busy.__getitem__)
    return ((busiest, busy[busiest]),)


KINDS: Mapping[str, Callable[[Setting, int], Trail]] = {"graph": graph, "ranks": ranks, "server": server}
