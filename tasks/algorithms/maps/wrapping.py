"""A map around another one, which says of itself what that one says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Self

from roundweave.tasks.algorithms.algebra import Map


def _of_the_map(name: str) -> Any:
    """A property that is the inner map's of this name."""
    return property(attrgetter(f"map.{name}"))


@dataclass(frozen=True)
class Wrapping(Map):
    """The base of maps that change or add to what another `map` does; they say where they differ from it.

    What is not inherited (`says`) is not said here.

    Example:
        >>> import roundweave as rw
        >>> from dataclasses import dataclass, replace
        >>> @dataclass(frozen=True)
        ... class Halved(rw.Wrapping):
        ...     def __call__(self, objective, state, examples, carry, seed):
        ...         update = self.map(objective, state, examples, carry, seed)
        ...         return replace(update, direction={k: v / 2 for k, v in update.direction.items()})
        >>> Halved(rw.Gradient()).carry
        ()
    """

    map: Map

    carry = _of_the_map("carry")
    extras = _of_the_map("extras")
    extras_of_all = _of_the_map("extras_of_all")
    observes = _of_the_map("observes")
    unit_slots = _of_the_map("unit_slots")
    pseudo_gradient = _of_the_map("pseudo_gradient")
    begins_apart = _of_the_map("begins_apart")
    needs_rounds = _of_the_map("needs_rounds")
    fetch_ends_carry = _of_the_map("fetch_ends_carry")

    def bound(self, objective: Any, partitions: Any) -> Self:
        return replace(self, map=self.map.bound(objective, partitions))
