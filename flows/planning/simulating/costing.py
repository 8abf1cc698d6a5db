"""What a work costs wherever it runs, from rounds on as many partitions as there are workers, and on fewer.

What was not measured by itself, such as what a round takes besides its maps, is found by least squares (Lawson and
Hanson 1974, chapter 23): as much of it that rounds which are simulated on a cluster such as the one at hand take
what those took that were tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil
from statistics import median

import numpy as np
from scipy.optimize import nnls

from flows.planning.calibrating import Calibration
from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.schedules import Schedule
from flows.planning.trying import Tried
from flows.planning.workload import Workload

MESSAGE = 3e-4
"""Seconds that a message costs a rank for each other one; see docs/scaling.md."""

CHANGES = {"round": 1e-3, "start": 1e-3, "task": 1e-3, "fold": 1e-9}
"""By how much each cost is changed, to see what comes of it."""

FREE = {"graph": ("round", "start", "task", "fold"), "gang": ("round", "start", "fold")}
"""What is found of the costs of each kind of schedule; to fold an update is also to take it in."""

TURNS = 4
"""So often costs are found again, each time from what is simulated with those of the time before."""

STEPS = 10
"""Local steps of rounds that tell what a core takes from what the scheduler does."""

Size = tuple[int, int]
"""So many partitions, and so many local steps of each."""

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

    What a round takes is about a sum of its costs (Gauss and Newton's way to least squares, a few times over).
    """
    taken, times = np.array(list(tried.values())), np.zeros(len(FREE[kind]))
    for _ in range(TURNS):
        costs = _more(known, kind, times)
        simulated = _simulated(costs, here, kind, tried)
        changed = [_simulated(_more(costs, kind, one), here, kind, tried) for one in np.eye(len(times))]
        slopes = np.array(changed).T - simulated[:, None]
        # Divided by what they took, as it is shares of it that rounds are to be known by.
        times, _ = nnls(slopes / taken[:, None], (taken - simulated + slopes @ times) / taken)
    return _more(known, kind, times)


def _more(costs: Costs, kind: str, times: np.ndarray) -> Costs:
    """With so many times the changes of what is free."""
    free = zip(FREE[kind], times.tolist(), strict=True)
    return replace(costs, **{name: getattr(costs, name) + each * CHANGES[name] for name, each in free})


def _simulated(costs: Costs, here: SimulatedCluster, kind: str, sizes: Iterable[Size]) -> np.ndarray:
    """Seconds of a round of each size."""
    seconds = []
    for workers, steps in sizes:
        schedule = Schedule(kind, kind, steps)
        outcome = schedule.run(schedule.setting(costs, here, workers, 0), ROUNDS)
        seconds.append(median(outcome.seconds[1:]))
    return np.array(seconds)
