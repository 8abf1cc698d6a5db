"""A map around another one, which says of itself what that one says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from roundweave.storage.values.tensors import Specs
from roundweave.tasks.algorithms.algebra import Map


@dataclass(frozen=True)
class Wrapping(Map):
    """The base of maps that change or add to what another `map` does; they say where they differ from it.

    What is not inherited (`says`) is not said here.
    """

    map: Map

    @property
    def carry(self) -> tuple[str, ...]:
        return self.map.carry

    @property
    def extras(self) -> tuple[str, ...]:
        return self.map.extras

    @property
    def extras_of_all(self) -> bool:  # type: ignore[override]
        return self.map.extras_of_all

    @property
    def observes(self) -> Specs:
        return self.map.observes

    @property
    def unit_slots(self) -> tuple[str, ...]:
        return self.map.unit_slots

    @property
    def pseudo_gradient(self) -> bool:  # type: ignore[override]
        return self.map.pseudo_gradient

    @property
    def begins_apart(self) -> bool:
        return self.map.begins_apart

    @property
    def needs_rounds(self) -> str:
        return self.map.needs_rounds

    @property
    def fetch_ends_carry(self) -> bool:
        return self.map.fetch_ends_carry

    def bound(self, objective: Any, partitions: Any) -> Self:
        return replace(self, map=self.map.bound(objective, partitions))
