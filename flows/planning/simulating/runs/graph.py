"""Synchronous rounds as tasks: what the graph executor does.

A scheduler hands out a task and takes it back, half of its seconds each. Whoever has the state gives it to others,
one machine at a time. A node of the tree over updates is a task on the machine of its first update, which takes in
the others by its link. The next maps begin once the state is there, and the commit goes on beside them.
"""

from __future__ import annotations

from math import ceil, floor

from flows.planning.simulating.runs.machines import Setting
from flows.planning.simulating.runs.parts import (
    LINK,
    MESSAGES,
    REDUCE,
    SCHEDULER,
    STATE,
    STRAGGLERS,
    Gate,
    Line,
    Process,
    Trail,
    at,
    begin,
)
from flows.planning.simulating.runs.synchronous import Synchronous

COPY = 1_000
"""Number of a map's copy, beyond those of the attempts at the map."""


class Graph(Synchronous):
    """A run as tasks: its scheduler, and its machines."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.scheduler = Line()

    def round(self, round: int) -> Gate:
        """Begin a round; what opens once all is reduced."""
        return _Round(self, round).begun()

    def commit(self) -> Process:
        """Keep a state, as a task."""
        yield from self.handed()
        yield from self.machines.commit()
        yield from self.handed(0)

    def handed(self, messages: int = 1) -> Process:
        """Wait until the scheduler has handed out a task, or, with no message, taken it back; gives the trail."""
        latency = messages * self.setting.cluster.latency
        done = self.scheduler.book(self.simulation.now, self.setting.costs.task / 2)
        if self.setting.machines == 1:  # the scheduler has no machine of its own, and maps wait for it
            self.machines.cores[0].book(self.simulation.now, self.setting.costs.task / 2)
        yield at(self.simulation, done + latency)
        return (SCHEDULER, done), (MESSAGES, self.simulation.now)


class _Round:
    """A round: which updates have come, and the nodes of the tree that wait for them."""

    def __init__(self, graph: Graph, number: int) -> None:
        setting = graph.setting
        self._graph = graph
        self._setting = setting
        self._machines = graph.machines
        self._simulation = graph.simulation
        self._number = number
        self._done = set[int]()
        self._holders = Line(setting.cluster.reducers, graph.simulation.now)
        self._there = {0: graph.simulation.now} if setting.cluster.reducers == 1 else {}
        self._fan_in = setting.cluster.fan_in or setting.workers
        self._leaves = self._gates(setting.workers)
        self._enough = Gate(graph.simulation, ceil(_count(setting.cluster.wait_for, setting)))
        copies = floor(_count(setting.cluster.backups, setting))
        self._late = Gate(graph.simulation, setting.workers - copies)

    def begun(self) -> Gate:
        """Begin; what opens once all is reduced."""
        reducers, workers = self._setting.cluster.reducers, range(self._setting.workers)
        root = Gate(self._simulation, reducers)
        for reducer in range(reducers):
            self._grow(reducer, root)
        begin(self._simulation, (self._map(worker, self._machines.of(worker)) for worker in workers))
        if self._setting.cluster.wait_for < 1:
            begin(self._simulation, [self._go_on()])
        if self._setting.cluster.backups:
            begin(self._simulation, [self._back_up()])
        return root

    def _map(self, worker: int, machine: int, number: int = 0, trail: Trail = ()) -> Process:
        trail += yield from self._graph.handed()
        fetched = self._fetched(machine)
        if fetched > self._simulation.now:
            yield at(self._simulation, fetched)
        trail += ((STATE, self._simulation.now),)
        if number and worker in self._done:
            return  # a copy of what is done by now
        mapped = yield from self._machines.map(self._number, worker, machine, number)
        if mapped is None:
            return
        trail += mapped if not number else ((STRAGGLERS, self._simulation.now),)
        trail += yield from self._graph.handed(0)
        if worker not in self._done:
            self._done.add(worker)
            for gate in (self._leaves[worker // self._fan_in], self._enough, self._late):
                gate.arrive(machine, trail)

    def _fetched(self, machine: int) -> float:
        """When a machine has the state, from then on for others, too."""
        if machine not in self._there:
            latency = self._setting.cluster.latency
            sent = self._holders.book(self._simulation.now + latency, self._setting.transfer(1))
            self._there[machine] = sent + latency
            self._holders.join(sent + latency)
        return self._there[machine]

    def _go_on(self) -> Process:
        trail = yield self._enough
        for leaf in self._leaves:
            leaf.open(trail)

    def _back_up(self) -> Process:
        """Map once more what is left, where others are done."""
        trail = yield self._late
        left = [worker for worker in range(self._setting.workers) if worker not in self._done]
        copies = zip(left, self._late.came, strict=False)
        begin(self._simulation, (self._map(worker, machine, COPY, trail) for worker, machine in copies))

    def _gates(self, count: int) -> list[Gate]:
        """A gate for each node whose updates these are."""
        width = self._fan_in
        return [Gate(self._simulation, min(width, count - first)) for first in range(0, count, width)]

    def _grow(self, reducer: int, root: Gate) -> None:
        """The tree over a reducer's part of all updates."""
        level = self._leaves
        while len(level) > 1:
            above = self._gates(len(level))
            begin(
                self._simulation,
                (self._node(reducer, gate, above[i // self._fan_in]) for i, gate in enumerate(level)),
            )
            level = above
        begin(self._simulation, [self._node(reducer, level[0], root)])

    def _node(self, reducer: int, gate: Gate, above: Gate) -> Process:
        """A task that reduces its part of the updates which have come."""
        trail = yield gate
        setting, machines, came = self._setting, self._machines, sorted(gate.came)
        trail += yield from self._graph.handed()
        part = 1 / setting.cluster.reducers
        machine = came[int(reducer * part * len(came))] if came else 0
        far = sum(each != machine for each in came)
        if far:
            asked = self._simulation.now + setting.cluster.latency
            sent = machines.inward[machine].book(asked, setting.transfer(far, part))
            yield at(self._simulation, sent + setting.cluster.latency)
            trail += ((LINK, self._simulation.now),)
        folded = machines.cores[machine].book(self._simulation.now, setting.costs.fold_seconds(len(came), part))
        yield at(self._simulation, folded + setting.cluster.latency)
        trail += (REDUCE, folded), (MESSAGES, self._simulation.now)
        trail += yield from self._graph.handed(0)
        above.arrive(machine, trail)


def _count(share: float, setting: Setting) -> float:
    """A share of all workers, so that 0.55 of 100 are 55."""
    return round(share * setting.workers, 6)
