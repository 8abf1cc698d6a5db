"""How maps are computed: one partition after the other, unless a subclass of `Mapper` does otherwise.

The mapper decides bits, and is therefore part of a run's identity. Algorithms do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots
from roundweave.tasks.algorithms.algebra import Map

T = TypeVar("T")

EXAMPLES = 8
"""The most examples for `Mapper.compare`, and for trying a network before ranks share it."""


MapInput = tuple[Any, Slots, int]
"""The input of a map: a partition's examples, its carry (vectors (element,) by slot), and its seed."""


@dataclass(frozen=True, kw_only=True)
class Mapper:
    """Maps partitions one after the other. Subclasses map several at once, or one on several ranks.

    `at_once` is the most partitions that are mapped together, and `ranks` the number of ranks that map one
    together. The bits of a partition do not depend on the others. `device` is where torch computes, in torch's
    words. `recorded` are options that a run records as they are now, whatever was given.
    """

    at_once: int = 1
    ranks: int = 1
    device: str = "cpu"
    recorded: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def check_map(self, map: Map) -> None:
        """Raise `UsageError` if a map cannot be computed in this way."""

    def check_examples(self, partitions: Any, partition: int) -> None:
        """Raise `DataError` for examples of a partition that maps cannot take.

        Networks are tried after this check.
        """

    def check(self, map: Map, objective: Any, partitions: Any, partition: int, sizes: Sequence[int]) -> None:
        """Raise an error if the network cannot be trained in this way on a partition's examples.

        `sizes` are the numbers of examples of the partitions; empty if they come from the split.
        """

    def bound(self, objective: Any, partitions: Any) -> Self:
        """Return the mapper, bound to a run's network. Raises `ModelError` if it cannot compute the network."""
        return self

    def on(self, each: Callable[[Callable[[], str]], Mapping[str, str]]) -> Self:
        """Return the mapper for an executor's processes. `each` calls a function in each process."""
        return self

    def compare(self, objective: Any, inputs: Any, state: State) -> None:
        """Raise `RoundFailed` if a step from a state differs from that of mapping one by one, in this process.

        `inputs` are ``(example, *)``.
        """

    def __call__(self, map: Map, objective: Any, state: State, inputs: Sequence[MapInput]) -> list[Update]:
        """Map up to `at_once` partitions from the same state. Each update is as if it were mapped alone."""
        return [self.update(map, objective, state, *each) for each in inputs]

    def update(self, map: Map, objective: Any, state: State, examples: Any, carry: Slots, seed: int) -> Update:
        """Return the update of one partition."""
        return map(objective, state, examples, carry, seed)

    def scored(self, objective: Any, state: State, function: Callable[[Any, State], T]) -> T:
        """Call a function with an objective and a state like those that maps train, and return its result."""
        return function(objective, state)

    def rounds(self, job: Any, round: int, group: Any, data: Any, halted: Callable[[], bool]) -> Iterator[Any]:
        """Yield each round after a committed `round`. `ranks` neighbours in the group map a block together."""
        raise NotImplementedError
