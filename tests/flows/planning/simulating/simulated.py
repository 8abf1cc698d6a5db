"""Works and clusters for tests of simulations, in round numbers."""

from __future__ import annotations

from math import inf
from typing import Any

from flows.planning.simulating.costs import Costs, SimulatedCluster
from flows.planning.simulating.rounds import Setting

FREE = {"bandwidth": inf, "latency": 0}
"""A cluster on which nothing but computing takes time."""


def work(**changes: Any) -> Costs:
    """Of two steps a map takes 0.2 s, an update on a link of 10 MB/s 0.1 s, and a fold 0.01 s."""
    given = {"examples": 6400, "batch": 32, "state": 1_000_000, "step": 0.1, "fold": 1e-8}
    return Costs(**(given | changes))


def setting(workers: int, costs: Costs | None = None, steps: int = 2, seed: int = 0, **cluster: Any) -> Setting:
    """A machine for each worker, links of 10 MB/s, and no latency, unless it says otherwise."""
    made = SimulatedCluster(**({"cores": 1, "bandwidth": 1e7, "latency": 0} | cluster))
    return Setting(costs or work(), made, workers, steps, seed)
