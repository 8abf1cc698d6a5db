"""The base of maps around another map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Self

from roundweave.tasks.algorithms.algebra import Map


def _of_the_map(name: str) -> Any:
    """Return a property that reads the property of this name from the inner map."""
    return property(attrgetter(f"map.{name}"), doc=f"The `{name}` of the inner map.")


@dataclass(frozen=True)
class Wrapping(Map):
    """Base class of maps that change another `map`, or add to its update.

    By default a wrapper has the properties of its inner map, except those that are not inherited (see `says`). A
    subclass defines ``__call__``.

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
    whole = _of_the_map("whole")
    unit_slots = _of_the_map("unit_slots")
    pseudo_gradient = _of_the_map("pseudo_gradient")
    begins_apart = _of_the_map("begins_apart")
    needs_rounds = _of_the_map("needs_rounds")
    fetch_ends_carry = _of_the_map("fetch_ends_carry")

    def bound(self, objective: Any, partitions: Any) -> Self:
        """Return a copy with a bound inner map."""
        return replace(self, map=self.map.bound(objective, partitions))
