"""What a work costs wherever it runs, from rounds on as many partitions as there are workers, and on fewer.

Rounds of one step on P partitions take what is simulated of them, on a cluster such as the one at hand, and
r + ceil(P / C) s more, if all share C cores: what a round takes besides on any number of workers, and what a map
does, are found by least squares (Lawson and Hanson 1974, chapter 23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from statistics import median

from scipy.optimize import nnls

from flows.planning.calibrating import Calibration
from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.schedules import Schedule
from flows.planning.trying import Tried
from flows.planning.workload import Workload

MESSAGE = 2e-4
"""Seconds of a message between ranks; see docs/scaling.md."""

ROUNDS = 3
"""So many are simulated to compare them with those that were tried."""


def sizes(workers: int) -> list[int]:
    """Numbers of partitions that are tried: powers of two, and as many as there are workers."""
    return sorted({*(1 << power for power in range(workers.bit_length())), workers})


def costs_by_kind(
    work: Workload, measured: Calibration, tried: Mapping[str, Mapping[int, Tried]]
) -> dict[str, Costs]:
    """What a work costs by each kind of schedule, whose rounds of one step took so long on several partitions."""
    here = SimulatedCluster(machines=measured.machines, cores=measured.together.cores, bandwidth=1e15, latency=0)
    known = _known(work, measured)
    costs = {kind: _fitted(known, here, kind, trials) for kind, trials in tried.items()}
    return costs | {"server": _of_server(known, here, measured)}


def _known(work: Workload, measured: Calibration) -> Costs:
    """What was measured by itself. Links are taken to need no time: it is in what was measured."""
    pace = measured.together
    crowd = max(1.0, measured.workers / (measured.machines * pace.cores))
    return Costs(
        examples=work.examples,
        batch=work.batch,
        state=work.state,
        step=pace.step / crowd,
        fold=pace.reduce / crowd,
        task=measured.task,
        message=MESSAGE,
        write=crowd / pace.store,
    )


def _fitted(known: Costs, here: SimulatedCluster, kind: str, tried: Mapping[int, Tried]) -> Costs:
    """With seconds of a round and of a map, so that what was tried is what is simulated of it."""
    left = [trial.seconds - _simulated(known, here, kind, count) for count, trial in tried.items()]
    turns = [max(1, ceil(count / ((here.machines or 1) * here.cores))) for count in tried]
    if len({*turns}) == 1:  # nothing tells a map from a round
        return replace(known, round=max(0.0, median(left)))
    (round, start), _ = nnls([[1.0, turn] for turn in turns], left)
    return replace(known, start=float(start), round=float(round))


def _of_server(known: Costs, here: SimulatedCluster, measured: Calibration) -> Costs:
    """With what a server takes for an arrival, if it was tried; at most that, as it may have waited for one."""
    trial = measured.rounds.get("asynchronous")
    if trial is None:
        return known
    arrivals = _simulated(known, here, "server", measured.workers)
    return replace(known, round=max(0.0, trial.seconds - arrivals / measured.workers))


def _simulated(costs: Costs, here: SimulatedCluster, kind: str, workers: int) -> float:
    """Seconds of a round of one step; of a server that is an arrival of each worker."""
    schedule = Schedule(kind, kind, 1)
    return median(schedule.run(schedule.setting(costs, here, workers, 0), ROUNDS).seconds[1:])
