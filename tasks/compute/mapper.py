"""How the partitions of a round are mapped: the base of all wrappers of maps."""

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
    """Maps partitions one after the other; a wrapper that maps them otherwise inherits this."""

    map: Map

    @property
    def at_once(self) -> int:
        """How many partitions are mapped together, at most; the bits of one do not depend on the others."""
        return 1

    @property
    def ranks(self) -> int:
        """How many processes work on one partition together."""
        return 1

    def check(self, objective: Any, examples: Any, sizes: Sequence[int]) -> None:
        """Raise what speaks against such networks on such examples, in partitions of these sizes."""

    def __call__(
        self,
        objective: Any,
        state: State,
        examples: Sequence[Any],
        carries: Sequence[Mapping[str, Vectors]],
        seeds: Sequence[int],
    ) -> list[Update]:
        """The updates of up to `at_once` partitions, from the same state: each as if it were mapped alone."""
        given = zip(examples, carries, seeds, strict=True)
        return [self.map(objective, state, *each) for each in given]

    def scored(self, objective: Any, state: State, function: Callable[[Any, State], T]) -> T:
        """What a function of objective and state gives where they are as they are trained."""
        return function(objective, state)
