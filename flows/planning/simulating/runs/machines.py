"""Where simulated workers are, and what those of a machine share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import simpy

from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.runs.draws import Draws
from flows.planning.simulating.runs.parts import (
    FAILURES,
    MAPS,
    MESSAGES,
    STORE,
    STRAGGLERS,
    Line,
    Process,
    Trail,
    at,
)

ATTEMPTS = 100
"""A map, or a gang's round, that fails so often in a row is taken never to end."""


@dataclass(frozen=True)
class Setting:
    """A work on so many workers of a cluster, whose maps take so many steps of each of their `partitions`."""

    costs: Costs
    cluster: SimulatedCluster
    workers: int
    steps: int
    partitions: int
    seed: int = 0

    @property
    def machines(self) -> int:
        """How many there are."""
        return min(self.workers, self.cluster.machines or -(-self.workers // self.cluster.cores))

    @property
    def each(self) -> int:
        """Workers of a machine, which are neighbours in their order."""
        return -(-self.workers // self.machines)

    @property
    def crowd(self) -> float:
        """How many workers share a core when all are at work."""
        return max(1.0, self.each / self.cluster.cores)

    def transfer(self, count: int, part: float = 1.0) -> float:
        """Seconds of a link for so many states or updates, of each a part."""
        return count * part * self.costs.state / self.cluster.bandwidth


@dataclass(frozen=True)
class Outcome:
    """Simulated rounds: what each took, and seconds of a round by what its time went for.

    `endless` says that the next one would never end.
    """

    seconds: list[float] = field(default_factory=list)
    spent: Counter[str] = field(default_factory=Counter)
    endless: bool = False


class Machines:
    """Machines at work: cores, links, a store, and the maps that go on there, whose updates may be `kept`."""

    def __init__(self, setting: Setting, kept: bool = True) -> None:
        self.setting = setting
        self.simulation = simpy.Environment()
        self.cores = [Line(setting.cluster.cores) for _ in range(setting.machines)]
        self.inward = [Line() for _ in range(setting.machines)]
        self.outward = [Line() for _ in range(setting.machines)]
        self.draws = Draws(setting.cluster, setting.workers, setting.seed)
        self._each = setting.each
        self._map = setting.costs.map_seconds(setting.steps, setting.partitions, kept)
        self._keeps = kept and setting.cluster.store is not None
        self._store = Line()

    def of(self, worker: int) -> int:
        """The machine of a worker."""
        return worker // self._each

    def map(self, round: int, worker: int, machine: int, number: int = 0) -> Process:
        """Map a worker's partitions on a machine, again where it fails, until others know.

        Gives the trail, None where that never ends. `number` tells a copy of the map from it.
        """
        trail, cluster, simulation = Trail(), self.setting.cluster, self.simulation
        seconds = self._map * self.draws.factors(round, number)[worker]
        for attempt in range(number, number + ATTEMPTS):
            life = self.draws.lives(round, attempt)[worker]
            done = self.cores[machine].book(simulation.now, min(life, seconds))
            if life >= seconds:
                kept = done
                if self._keeps:
                    yield at(simulation, done)
                    kept = self.kept(done, self.setting.partitions)
                yield at(simulation, kept + cluster.latency)
                trail += (MAPS, done - seconds + self._map), (STRAGGLERS, done), (STORE, kept)
                return (*trail, (MESSAGES, simulation.now))
            yield at(simulation, done + cluster.detection + cluster.restart)
            trail += ((FAILURES, simulation.now),)
        return None

    def map_all(self, round: int) -> list[tuple[float, int, Trail]]:
        """Maps of all workers that begin now and never fail, first come first: when done, whose, and the trail."""
        now, factors, mapped = self.simulation.now, self.draws.factors(round), []
        for worker, factor in enumerate(factors):
            mapped.append((self.cores[self.of(worker)].book(now, self._map * factor), worker))
        return [
            (done, worker, ((MAPS, done - self._map * (factors[worker] - 1)), (STRAGGLERS, done)))
            for done, worker in sorted(mapped)
        ]

    def kept(self, now: float, count: int) -> float:
        """When the store has so many updates or states that come now."""
        if self.setting.cluster.store is None:
            return now
        return self._store.book(now, count * self.setting.costs.state / self.setting.cluster.store)

    def commit(self) -> Process:
        """Keep a state."""
        yield self.simulation.timeout(self.setting.costs.state / self.setting.costs.write)
        yield at(self.simulation, self.kept(self.simulation.now, 1))
