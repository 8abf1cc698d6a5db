"""What a work costs wherever it runs, from rounds on as many partitions as there are workers, and on fewer.

What was not measured by itself, such as what a round takes besides its maps, is found by least squares (Lawson and
Hanson 1974, chapter 23): as much of it that rounds which are simulated on a cluster such as the one at hand take
what those took that were tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median

import numpy as np
from scipy.optimize import nnls

from flows.planning.calibrating import Calibration
from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.schedules import Schedule
from flows.planning.trying import Tried
from flows.planning.workload import Workload

MESSAGE = 2e-4
"""Seconds of a message between ranks; see docs/scaling.md."""

FREE = {"graph": ("round", "start", "task"), "gang": ("round", "start")}
"""What is found of the costs of each kind of schedule."""

CHANGE = 1e-3
"""Seconds by which each of these is changed, to see what comes of it."""

ROUNDS = 3
"""So many are simulated to compare them with those that were tried."""


def sizes(kind: str, workers: int) -> list[int]:
    """Numbers of partitions that are tried: powers of two, and as many as there are workers.

    A rank alone exchanges nothing, so of a gang there are two.
    """
    least = 1 if kind == "gang" and workers > 1 else 0
    return sorted({*(1 << power for power in range(least, workers.bit_length())), workers})


def costs_by_kind(
    work: Workload, measured: Calibration, tried: Mapping[str, Mapping[int, Tried]]
) -> dict[str, Costs]:
    """What a work costs by each kind of schedule, whose rounds of one step took so long on several partitions."""
    here = SimulatedCluster(machines=measured.machines, cores=measured.together.cores, bandwidth=1e15, latency=0)
    known = _known(work, measured)
    costs = {
        kind: _fitted(known, here, kind, {count: trial.seconds for count, trial in trials.items()})
        for kind, trials in tried.items()
    }
    return costs | {"server": _of_server(known, measured)}


def _of_server(known: Costs, measured: Calibration) -> Costs:
    """With what an arrival took, where it was tried: at most that is what a server takes for one."""
    arrival = measured.rounds.get("asynchronous")
    return replace(known, round=max(0.0, arrival.seconds - known.fold_seconds(2))) if arrival else known


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


def _fitted(known: Costs, here: SimulatedCluster, kind: str, tried: Mapping[int, float]) -> Costs:
    """With more seconds of what was not measured by itself, so that what was tried is what is simulated of it."""
    simulated = _simulated(known, here, kind, tried)
    columns = [
        (_simulated(_more(known, name, CHANGE), here, kind, tried) - simulated) / CHANGE for name in FREE[kind]
    ]
    taken = np.array(list(tried.values()))
    # Divided by what they took, as it is shares of it that rounds are to be known by.
    added, _ = nnls(np.array(columns).T / taken[:, None], (taken - simulated) / taken)
    for name, seconds in zip(FREE[kind], added.tolist(), strict=True):
        known = _more(known, name, seconds)
    return known


def _more(costs: Costs, name: str, seconds: float) -> Costs:
    return replace(costs, **{name: getattr(costs, name) + seconds})


def _simulated(costs: Costs, here: SimulatedCluster, kind: str, numbers: Iterable[int]) -> np.ndarray:
    """Seconds of a round of one step on each of so many workers."""
    schedule = Schedule(kind, kind, 1)
    settings = (schedule.setting(costs, here, workers, 0) for workers in numbers)
    return np.array([median(schedule.run(setting, ROUNDS).seconds[1:]) for setting in settings])
