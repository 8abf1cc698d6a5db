"""Rounds that wait for all: what tasks and ranks that stay have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import simpy

from flows.planning.simulating.runs.machines import Machines, Outcome, Setting
from flows.planning.simulating.runs.parts import APPLY, COMMIT, FAILURES, Gate, Process, spent


class Synchronous(ABC):
    """A run whose rounds follow each other; the commit goes on beside the next one."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.machines = Machines(setting)
        self.simulation = self.machines.simulation

    def run(self, rounds: int) -> Outcome:
        """Simulate so many rounds."""
        outcome = Outcome()
        self.simulation.process(self._rounds(rounds, outcome))
        self.simulation.run()
        return outcome if len(outcome.seconds) == rounds else Outcome(outcome.seconds, outcome.spent, True)

    def _rounds(self, rounds: int, outcome: Outcome) -> Process:
        commit: simpy.Event = self.simulation.timeout(0)
        for round in range(rounds):
            began = self.simulation.now
            trail = yield self.round(round)
            yield self.simulation.timeout(self.setting.costs.round)
            trail += ((APPLY, self.simulation.now),)
            yield commit
            trail += ((COMMIT, self.simulation.now),)
            lost = self.lost(round, self.simulation.now - began)
            if lost is None:
                return
            yield self.simulation.timeout(lost)
            trail += ((FAILURES, self.simulation.now),)
            commit = self.simulation.process(self.commit())
            outcome.seconds.append(self.simulation.now - began)
            outcome.spent.update(spent(began, trail))

    @abstractmethod
    def round(self, round: int) -> Gate:
        """Begin a round; what opens once all have what came of it, and gives the trail."""

    def lost(self, round: int, seconds: float) -> float | None:
        """Seconds that a round of so many takes longer as it is begun anew; None where it never ends."""
        return 0.0

    def commit(self) -> Process:
        """Keep a state."""
        return self.machines.commit()
