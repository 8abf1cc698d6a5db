"""Asynchronous rounds: what a server of updates does that arrive.

A worker fetches the state, maps, pushes its update, and waits for none but the server, which takes in one update
at a time. What it takes in is committed by serving it once more, beside, and it is not too far ahead of that.
"""

from __future__ import annotations

from collections import Counter

from flows.planning.simulating.runs.machines import Machines, Outcome, Setting
from flows.planning.simulating.runs.parts import (
    COMMIT,
    LINK,
    REDUCE,
    SCHEDULER,
    STATE,
    Line,
    Process,
    at,
    begin,
    spent,
)

UNKEPT = 64
"""So many updates may be taken in and not be committed yet."""


class Server:
    """A run with a server: its lines, and who has arrived."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.machines = Machines(setting, kept=False)
        self.simulation = self.machines.simulation
        self.scheduler, self.takes, self.keeps = Line(), Line(), Line()
        self._part = 1 / setting.cluster.reducers
        self._kept: list[float] = []
        self._mapped = Counter[str]()
        self._windows = [0.0]
        self._arrivals = 0
        self._last = 0

    def run(self, rounds: int) -> Outcome:
        """Simulate so many updates of each worker, on average.

        What is spent are seconds of a map, and of all arrivals of a round at what takes one at a time.
        """
        workers = self.setting.workers
        self._last = rounds * workers
        begin(self.simulation, map(self._turns, range(workers)))
        self.simulation.run()
        seconds = [later - former for former, later in zip(self._windows, self._windows[1:], strict=False)]
        lines = {
            SCHEDULER: self.scheduler,
            STATE: self.machines.outward[0],
            LINK: self.machines.inward[0],
            REDUCE: self.takes,
            COMMIT: self.keeps,
        }
        counted = self._last / max(1, len(self._kept))  # turns in hand at the end are no part of any round
        totals = {what: line.busy * counted for what, line in lines.items()}
        means = {what: total * counted / workers for what, total in self._mapped.items()}
        return Outcome(seconds[:rounds], Counter(totals | means), len(seconds) < rounds)

    def _turns(self, worker: int) -> Process:
        turn, machine = 0, self.machines.of(worker)
        while self._arrivals < self._last:
            yield from self._handed()
            yield from self._moved(self.machines.outward[0], machine)
            began = self.simulation.now
            mapped = yield from self.machines.map(turn, worker, machine)
            if mapped is None:
                return
            self._mapped.update(spent(began, mapped))
            yield from self._moved(self.machines.inward[0], machine)
            yield from self._handed()
            yield at(self.simulation, self._taken())
            turn += 1
            self._arrivals += 1
            if self._arrivals % self.setting.workers == 0:
                self._windows.append(self.simulation.now)

    def _handed(self) -> Process:
        done = self.scheduler.book(self.simulation.now, self.setting.costs.task / 2)
        yield at(self.simulation, done + self.setting.cluster.latency)

    def _moved(self, link: Line, machine: int) -> Process:
        """A state or an update on its way between a machine and the server's, which is the first."""
        if machine:
            asked = self.simulation.now + self.setting.cluster.latency
            sent = link.book(asked, self.setting.transfer(1, self._part))
            yield at(self.simulation, sent + self.setting.cluster.latency)

    def _taken(self) -> float:
        """When an update that arrives now is folded and applied, once there is place for it."""
        costs = self.setting.costs
        fold = costs.fold_seconds(2, self._part)
        place = self._kept[-UNKEPT] if len(self._kept) >= UNKEPT else 0.0
        done = self.takes.book(max(self.simulation.now, place), fold + costs.round)
        kept = self.machines.kept(self.keeps.book(done, fold + self._part * costs.state / costs.write), 1)
        self._kept.append(kept)
        return done
