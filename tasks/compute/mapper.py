"""How the partitions of a round are mapped: one after the other, unless a subclass of `Mapper` does otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots
from roundweave.tasks.algorithms.algebra import Map

T = TypeVar("T")

EXAMPLES = 8
"""How many examples, at most, `Mapper.compare` is given, and a network is tried on before ranks share it."""


MapInput = tuple[Any, Slots, int]
"""What is mapped of a partition: its examples, its carry, vectors (element,) by slot, and its seed."""


@dataclass(frozen=True)
class Mapper:
    """Maps partitions one after the other. Subclasses map several at once, or one on several ranks.

    `at_once` is how many partitions are mapped together at most. The bits of one do not depend on the others.
    """

    map: Map
    at_once: int = field(default=1, kw_only=True)

    def check(self, objective: Any, examples: Any, sizes: Sequence[int]) -> None:
        """Raise an error if the network cannot be trained in this way on such examples.

        `sizes` are the numbers of examples that partitions have.
        """

    def compare(self, objective: Any, inputs: Any, state: State) -> None:
        """Raise `RoundFailed` if a step from a state differs from that of mapping one by one, in this process.

        `inputs` are (example, *).
        """

    def __call__(self, objective: Any, state: State, inputs: Sequence[MapInput]) -> list[Update]:
        """Map up to `at_once` partitions from the same state. Each update is as if it were mapped alone."""
        return [self.update(objective, state, *each) for each in inputs]

    def update(self, objective: Any, state: State, examples: Any, carry: Slots, seed: int) -> Update:
        """The update of one partition."""
        return self.map(objective, state, examples, carry, seed)

    def scored(self, objective: Any, state: State, function: Callable[[Any, State], T]) -> T:
        """Call a function with an objective and a state such as those that maps train, and return its result."""
        return function(objective, state)
