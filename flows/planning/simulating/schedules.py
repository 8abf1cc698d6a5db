"""The ways to distribute a work that are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.runs.gang import Gang
from flows.planning.simulating.runs.graph import Graph
from flows.planning.simulating.runs.machines import Outcome, Setting
from flows.planning.simulating.runs.server import UNKEPT, Server


class Run(Protocol):
    """A run that is simulated."""

    def run(self, rounds: int) -> Outcome:
        """Simulate so many rounds."""
        ...


KINDS: Mapping[str, Callable[[Setting], Run]] = {"graph": Graph, "gang": Gang, "server": Server}


@dataclass(frozen=True)
class Schedule:
    """A way to distribute a work, by its kind; `steps` are the local ones of a round, None those of an epoch."""

    name: str
    kind: str
    steps: int | None

    def setting(self, costs: Costs, cluster: SimulatedCluster, workers: int, seed: int) -> Setting:
        """The work on so many workers by this schedule."""
        each = 1 if self.kind == "server" else cluster.partitions_per_task
        steps = self.steps or costs.epoch_steps(workers * each)
        return Setting(costs, cluster, workers, steps, each, seed)

    def rounds_of_epoch(self, setting: Setting) -> float:
        """How many there are; of a server a round is an update of each worker."""
        if self.steps is None:
            return 1.0
        return setting.costs.rounds(self.steps, setting.workers * setting.partitions)

    def run(self, setting: Setting, rounds: int) -> Outcome:
        """Simulate so many rounds."""
        return KINDS[self.kind](setting).run(rounds)

    def held(self, setting: Setting) -> float:
        """Bytes of updates that the process which has the most of them has at once."""
        width = min(setting.workers, setting.cluster.fan_in or setting.workers)
        if self.kind == "server":
            width = min(setting.workers, UNKEPT)
        reducers = setting.cluster.reducers if self.kind != "gang" else min(width, setting.cluster.reducers)
        return width * setting.costs.state / reducers


def schedules(local_steps: Sequence[int]) -> Iterator[Schedule]:
    """All of them, with so many local steps a round: gradients, local steps, epochs, and a server."""
    for kind in ("graph", "gang"):
        yield Schedule(f"synchronous, {kind}", kind, 1)
        yield from (Schedule(f"local {steps}, {kind}", kind, steps) for steps in local_steps if steps > 1)
        yield Schedule(f"local epoch, {kind}", kind, None)
    yield Schedule("asynchronous", "server", 1)
