"""Computes again what of a stored run's rounds is not stored, with the network and the data that it recorded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

from roundweave.flows.evidence.opening import OfRun, described_again, examples_wanted, plan_again
from roundweave.flows.evidence.replaying import key_differences, other_network
from roundweave.flows.machines import machines
from roundweave.flows.planning.describing import Described
from roundweave.flows.planning.plan import Plan
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import RoundFailed, RoundPruned, RoundweaveError, listed
from roundweave.storage.places.base import Where, full_address
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.rounds.tensors import Contents
from roundweave.storage.runs.names import default_root, find_run
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.persistence.outcomes import mapped_again, recompute, rounds_to_compute, supply


class Recomputing:
    """Called with a round of a run, computes it again where it is `placed`, and checks it against its record."""

    def __init__(self, address: str, placed: Mapping[str, Any]) -> None:
        self.address = address
        self.config = OfRun(**{"run": full_address(address), "executor": "inline", **placed})
        self._work: Work | None = None
        self._key: dict[str, str] = {}
        self._last: dict[int, Contents] = {}

    def __call__(self, round: int) -> Contents:
        """What a round gave. Raises `RoundPruned`, which says why it cannot be computed again."""
        if round not in self._last:
            try:
                with examples_wanted():
                    self._last = {round: self._computed(round)}
            except RoundweaveError as error:
                line = f"round {round} of {self.run.address} is not stored, and cannot be computed again: {error}"
                key = (f"; not as recorded: {name}: {what}" for name, what in self._key.items())
                raise RoundPruned(line + "".join(key)) from error
        return self._last[round]

    @cached_property
    def run(self) -> StoredRun:
        """The run, of which nothing is computed again."""
        return StoredRun(self.address)

    @cached_property
    def _plan(self) -> Plan:
        return plan_again(self.run, self.config)

    def _computed(self, round: int) -> Contents:
        with described_again(self._plan, self.config) as (described, executor):
            self._work = self._work or self._checked(described, executor)
            self._announce(round)
            compute = partial(_recompute, self._work, full_address(self.run.address))
            [computed] = executor.gather(compute, [round], stored=True)
        return computed

    def _checked(self, described: Described, executor: Executor) -> Work:
        """Return the run's work. Raises `RoundFailed` if its examples or its network are others now."""
        work, present = described.work, machines(executor, described.work, ())
        self._key = key_differences(self.run, described, present)
        if other := other_network(RoundStore(self.run.address), work, [0]):
            raise RoundFailed(str(other[0].difference))
        if "data" in self._key:
            raise RoundFailed("it was made of other examples")
        return work

    def _announce(self, round: int) -> None:
        """Say which rounds are computed again, and how long the maps took that are called again for it."""
        store = RoundStore(self.run.address)
        rounds = rounds_to_compute(store, round)
        seconds = sum(c.updates[p].seconds for c in map(store.log.read, rounds) for p in mapped_again(store, c))
        how = f": about {max(seconds, 0.1):.1f} s of maps" if seconds else " from stored updates"
        if rounds:
            notice(f"computing round {listed(rounds)} of {self.run.name} again{how}")


def open_again(name: Where, root: Where | None) -> StoredRun:
    """Return a stored run whose rounds that are not stored are computed again, in this process."""
    address = find_run(name, root)
    return StoredRun(address, Recomputing(address, {"root": root or default_root()}))


def _recompute(work: Work, address: str, round: int) -> Contents:
    return recompute(work, supply(work, RoundStore(address)), round)
