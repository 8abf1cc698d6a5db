"""Parts of a simulation: what is waited for, in what order it is had, and where the time of a round went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from heapq import heappush, heapreplace
from typing import Any

import simpy

MAPS, STRAGGLERS, FAILURES = "maps", "stragglers", "failures"
SCHEDULER, MESSAGES, STATE, STORE = "scheduler", "messages", "state's way", "store"
LINK, REDUCE, APPLY, COMMIT = "reducer's link", "reducer's CPU", "apply", "commit"
LINKS, FOLD = "links", "fold"
"""What the time of a round is spent on. Of a gang all ranks have links and fold; a server reduces as others do."""

Trail = tuple[tuple[str, float], ...]
"""One way through a round, step by step: what the time was spent on, and until when."""

Process = Generator[simpy.Event, Any, Any]
"""What is simulated of somebody who waits."""


def spent(began: float, trail: Trail) -> Counter[str]:
    """Seconds of a way that began then, by what they were spent on."""
    seconds = Counter[str]()
    for what, until in trail:
        seconds[what] += until - began  # type: ignore[assignment]
        began = until
    return seconds


class Line:
    """Who comes first is served first, by as many at once as there are: cores, a link, a scheduler.

    `busy` are the seconds that it has served.
    """

    def __init__(self, servers: int = 1, since: float = 0.0) -> None:
        self.busy = 0.0
        self._free = [since] * servers

    def book(self, now: float, seconds: float) -> float:
        """When what comes now, and takes so many seconds, is done."""
        free = self._free[0]
        done = (now if now > free else free) + seconds
        self.busy += seconds
        heapreplace(self._free, done)
        return done

    def join(self, now: float) -> None:
        """One more serves from now on."""
        heappush(self._free, now)


class Gate(simpy.Event):
    """Opens once so many have come; gives the trail of the last. `came` are the machines of those who have."""

    def __init__(self, simulation: simpy.Environment, count: int) -> None:
        super().__init__(simulation)
        self.came: list[int] = []
        self._count = count

    def arrive(self, machine: int, trail: Trail) -> None:
        """One has come; who comes late is not waited for."""
        if not self.triggered:
            self.came.append(machine)
            if len(self.came) == self._count:
                self.succeed(trail)

    def open(self, trail: Trail) -> None:
        """Wait for no more."""
        if not self.triggered:
            self.succeed(trail)


def at(simulation: simpy.Environment, time: float) -> simpy.Timeout:
    """That it is so late."""
    return simulation.timeout(max(0.0, time - simulation.now))


def begin(simulation: simpy.Environment, processes: Iterable[Process]) -> None:
    """Have them go on beside this one."""
    for process in processes:
        simulation.process(process)
