"""What a work would take on clusters that are not here, simulated with costs that are measured here."""

from __future__ import annotations

from collections.abc import Sequence

from flows.config.train import TrainConfig
from flows.planning.plan import bench_for
from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costing import costs_by_kind, sizes
from flows.planning.simulating.curves import Curves, simulate
from flows.planning.strategies import LOCAL_STEPS, strategies
from flows.planning.workload import workload


def beyond(config: TrainConfig, cluster: SimulatedCluster, workers: Sequence[int]) -> Curves:
    """Measure the work on the cluster at hand, and simulate it on another, with each of so many workers.

    Raises as `plan`, and `UsageError` for numbers that cannot be.
    """
    work = workload(config)
    with bench_for(config, work) as bench:
        candidates = [each for each in strategies(work, bench.workers, cores=1) if each.arrives]
        measured = bench.calibrated(candidates)
        most = work.most_local_steps
        tried = {kind: bench.sized(kind, sizes(kind, bench.workers, most)) for kind in ("graph", "gang")}
    steps = [each for each in LOCAL_STEPS if each <= (most or each)]
    return simulate(costs_by_kind(work, measured, tried), cluster, workers, steps, config.seed)
