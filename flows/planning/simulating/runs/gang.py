"""Synchronous rounds of ranks that stay: what the gang executor does.

All ranks of a group pass their updates around in a ring, a number first and then the bytes, and each folds all of
them; those of one machine read each other's memory. With a fan-in, as many ranks are a group, then each of them is
in a group with ranks of other groups, and so on: what a group has folded is one update to the next. With reducers,
so many of a group fold a part of all updates each, and then pass that around.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flows.planning.simulating.runs.machines import ATTEMPTS, Setting
from flows.planning.simulating.runs.parts import (
    FOLD,
    LINKS,
    MESSAGES,
    STORE,
    Gate,
    Process,
    Trail,
    at,
    begin,
)
from flows.planning.simulating.runs.synchronous import Synchronous


class Gang(Synchronous):
    """A run of ranks: its machines, and the groups in which ranks speak."""

    def lost(self, round: int, seconds: float) -> float | None:
        """Seconds of attempts at a round in which a rank failed: all begin it anew. None where it never ends."""
        lost, cluster = 0.0, self.setting.cluster
        for attempt in range(ATTEMPTS):
            life = min(self.machines.draws.lives(round, attempt))
            if life >= seconds:
                return lost
            lost += life + cluster.detection + cluster.restart
        return None

    def round(self, round: int) -> Gate:
        """Begin a round; what opens once all ranks have folded all."""
        workers = range(self.setting.workers)
        together = Gate(self.simulation, len(workers))
        above = [together] * len(workers)
        for level in reversed(list(levels(self.setting))):
            below = list(above)
            for group in level.groups():
                gate = Gate(self.simulation, len(group))
                begin(self.simulation, [self._exchange(level, gate, group, above)])
                below[group.start : group.stop : group.step] = [gate] * len(group)
            above = below
        begin(self.simulation, [self._map(round, above)])
        return together

    def _map(self, round: int, gates: list[Gate]) -> Process:
        for done, rank, trail in self.machines.map_all(round):
            if done > self.simulation.now:
                yield at(self.simulation, done)
            if self.setting.cluster.store is None:
                gates[rank].arrive(self.machines.of(rank), trail)
            else:
                begin(self.simulation, [self._keep(rank, gates[rank], trail)])

    def _keep(self, rank: int, gate: Gate, trail: Trail) -> Process:
        yield at(self.simulation, self.machines.kept(self.simulation.now, self.setting.partitions))
        gate.arrive(self.machines.of(rank), (*trail, (STORE, self.simulation.now)))

    def _exchange(self, level: Level, gate: Gate, group: range, above: list[Gate]) -> Process:
        """What the ranks of a group tell each other once all have come."""
        trail: Trail = yield gate
        setting = self.setting
        steps = level.told(group) - 1
        reducers = min(setting.cluster.reducers, steps + 1)
        times = 1 if reducers == 1 else 2
        said, sent = times * steps * setting.costs.message * setting.crowd, 0.0
        if self.machines.of(group[0]) != self.machines.of(group[-1]):  # else memory is shared
            said = 2 * (said + times * steps * setting.cluster.latency)
            sent = (steps + reducers - 1) * setting.transfer(min(setting.each, level.reach), 1 / reducers)
        folded = setting.crowd * setting.costs.fold_seconds(steps + 1, 1 / reducers)
        yield self.simulation.timeout(said + sent + folded)
        now = self.simulation.now
        trail += (MESSAGES, now - folded - sent), (LINKS, now - folded), (FOLD, now)
        for rank in group:
            above[rank].arrive(self.machines.of(rank), trail)


@dataclass(frozen=True)
class Level:
    """Groups of so many groups, in each of which ranks are alike by now: those of `reach` neighbours."""

    workers: int
    width: int
    reach: int

    def groups(self) -> Iterator[range]:
        """The ranks that speak to each other: one of each group below, at the end, where some are missing, all."""
        whole = self.width * self.reach
        for first in range(0, self.workers, whole):
            if first + whole <= self.workers:
                yield from (range(rank, first + whole, self.reach) for rank in range(first, first + self.reach))
            else:
                yield range(first, self.workers)

    def told(self, group: range) -> int:
        """How many updates each of a group has by the end."""
        return len(group) if group.step == self.reach else -(-len(group) // self.reach)


def levels(setting: Setting) -> Iterator[Level]:
    """The levels of groups, until all ranks are one."""
    width, reach = setting.cluster.fan_in or setting.workers, 1
    while reach < setting.workers:
        yield Level(setting.workers, width, reach)
        reach *= width
