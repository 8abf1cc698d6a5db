"""What a work costs wherever it runs, from rounds on as many partitions as there are workers, and on fewer.

What was not measured by itself, such as what a round takes besides its maps, is found by least squares within
bounds (Branch, Coleman and Li 1999): as much of it that rounds which are simulated on a cluster such as the one at
hand take what those took that were tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from flows.planning.calibrating import Calibration, Size
from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.schedules import Schedule
from flows.planning.trying import Tried
from flows.planning.workload import Workload

MESSAGE = 3e-4
"""Seconds that a message costs a rank for each other one; see docs/scaling.md."""

FREE = {"graph": ("round", "start", "task", "fold"), "gang": ("round", "start", "fold")}
"""What is found of the costs of each kind of schedule; to fold an update is also to take it in."""

START, STEP, TURNS = 0.1, 1e-3, 50
"""Shares of the most: where costs are looked for from, and a change that tells what comes of it; turns at most."""

WEIGHT = 1e-6
"""Of a cost that no round tells of, beside rounds that are off by all that they took."""

STEPS = 10
"""Local steps of rounds that tell what a core takes from what the scheduler does."""

ROUNDS = 3
"""So many are simulated to compare them with those that were tried."""


def sizes(kind: str, workers: int, most_steps: int | None = None) -> list[Size]:
    """Rounds that are tried: of one step on each quarter of the workers, and, if there may be, of more on all.

    A rank alone exchanges nothing, so of a gang there are two.
    """
    least = 2 if kind == "gang" and workers > 1 else 1
    steps = min(STEPS, most_steps or STEPS)
    numbers = sorted({max(least, ceil(quarter * workers / 4)) for quarter in (1, 2, 3, 4)})
    return [*((number, 1) for number in numbers), *([(workers, steps)] if steps > 1 else [])]


def costs_by_kind(
    work: Workload, measured: Calibration, tried: Mapping[str, Mapping[Size, Tried]]
) -> dict[str, Costs]:
    """What a work costs by each kind of schedule, whose rounds took so long."""
    here = SimulatedCluster(machines=measured.machines, cores=measured.together.cores, bandwidth=1e15, latency=0)
    known = _known(work, measured)
    costs = {
        kind: _fitted(known, here, kind, {size: trial.seconds for size, trial in trials.items()})
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


def _fitted(known: Costs, here: SimulatedCluster, kind: str, tried: Mapping[Size, float]) -> Costs:
    """With more seconds of what was not measured by itself, so that what was tried is what is simulated of it.

    No cost is more than the longest round took; what rounds do not tell stays about as it was.
    """
    taken = np.array(list(tried.values()))
    most = {name: max(tried.values()) / (known.state if name == "fold" else 1) for name in FREE[kind]}

    def costs(shares: np.ndarray) -> Costs:
        added = zip(most.items(), shares.tolist(), strict=True)
        return replace(known, **{name: getattr(known, name) + share * each for (name, each), share in added})

    def off(shares: np.ndarray) -> np.ndarray:
        # Divided by what they took, as it is shares of it that rounds are to be known by.
        return np.append((_simulated(costs(shares), here, kind, tried) - taken) / taken, WEIGHT * shares)

    start = np.full(len(most), START)
    return costs(least_squares(off, start, bounds=(0, 1), diff_step=STEP, max_nfev=TURNS).x)


def _simulated(costs: Costs, here: SimulatedCluster, kind: str, sizes: Iterable[Size]) -> np.ndarray:
    """Seconds of a round of each size."""
    seconds = []
    for workers, steps in sizes:
        schedule = Schedule(kind, kind, steps)
        outcome = schedule.run(schedule.setting(costs, here, workers, 0), ROUNDS)
        seconds.append(median(outcome.seconds[1:]))
    return np.array(seconds)
