"""How the partitions of a round are mapped: one after the other, unless a subclass of `Mapper` does otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.algebra import Map

T = TypeVar("T")


@dataclass(frozen=True)
class Mapper:
    """Maps partitions one after the other. Subclasses map several at once, or one on several ranks."""

    map: Map

    @property
    def at_once(self) -> int:
        """How many partitions are mapped together at most. The bits of one do not depend on the others."""
        return 1

    @property
    def ranks(self) -> int:
        """How many ranks map one partition together."""
        return 1

    def check(self, objective: Any, examples: Any, sizes: Sequence[int]) -> None:
        """Raise an error if the network cannot be trained in this way on such examples.

        `sizes` are the numbers of examples that partitions have.
        """

    def __call__(
        self,
        objective: Any,
        state: State,
        examples: Sequence[Any],
        carries: Sequence[Mapping[str, Vectors]],
        seeds: Sequence[int],
    ) -> list[Update]:
        """Map up to `at_once` partitions from the same state. Each update is as if it were mapped alone.

        The lists have one entry for each partition: its examples, its carry, vectors (element,) by slot, and its
        seed.
        """
        given = zip(examples, carries, seeds, strict=True)
        return [self.map(objective, state, *each) for each in given]

    def scored(self, objective: Any, state: State, function: Callable[[Any, State], T]) -> T:
        """Call a function with an objective and a state such as those that maps train, and return its result."""
        return function(objective, state)
