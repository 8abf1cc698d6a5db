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

SIMULATED_ROUNDS = 3


def sizes(workers: int) -> list[int]:
    """Numbers of partitions that are tried: powers of two, and as many as there are workers."""
    return sorted({*(1 << power for power in range(workers.bit_length())), workers})


def costs(work: Workload, measured: Calibration, kind: str, tried: Mapping[int, Tried]) -> Costs:
    """What a work costs by `graph` or `gang`, whose rounds of one step took so long on several partitions."""
    pace, here = measured.together, _here(measured)
    crowd = max(1.0, measured.workers / (measured.machines * pace.cores))
    known = Costs(
        examples=work.examples,
        batch=work.batch,
        state=work.state,
        step=pace.step / crowd,
        fold=pace.reduce / crowd,
        task=measured.task,
        message=MESSAGE,
        write=crowd / pace.store,
    )
    return _fitted(known, here, kind, tried)


def _here(measured: Calibration) -> SimulatedCluster:
    """The cluster at hand, whose links take no time of their own: what they take is in what was measured."""
    return SimulatedCluster(
        machines=measured.machines, cores=measured.together.cores, bandwidth=1e15, latency=0.0
    )


def _fitted(known: Costs, here: SimulatedCluster, kind: str, tried: Mapping[int, Tried]) -> Costs:
    """With seconds of a round and of a map, so that what was tried is what is simulated of it."""
    left, turns = [], []
    for partitions, trial in tried.items():
        setting = Schedule(kind, kind, 1).setting(known, here, partitions, 0)
        left.append(trial.seconds - median(Schedule(kind, kind, 1).run(setting, SIMULATED_ROUNDS).seconds))
        turns.append(ceil(setting.crowd))
    if len({*turns}) == 1:  # nothing tells a map from a round
        return replace(known, round=max(0.0, median(left)))
    (round, start), _ = nnls([[1.0, turn] for turn in turns], left)
    return replace(known, start=float(start), round=float(round))
