"""The base class of reduces that need all updates at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.values.state import State, Update
from tasks.algebra import Node, Reduce


@dataclass(frozen=True)
class Gather(Reduce):
    """Base class of reduces that need all updates at once, ordered by partition.

    A subclass defines ``__call__(state, updates) -> Update``.

    >>> class Last(Gather):
    ...     def __call__(self, state, updates):
    ...         return updates[-1]
    >>> node = Last().join(Last().join(Update({}, weight=1), Update({}, weight=2)), Update({}, weight=3))
    >>> Last().finish(State({}), node).weight
    3
    """

    @property
    def gathers(self) -> bool:
        return True

    def join(self, left: Node, right: Node) -> Node:
        return (*_listed(left), *_listed(right))

    def finish(self, state: State, node: Node) -> Update:
        """Call the reduce on all updates."""
        return self(state, _listed(node))

    def __call__(self, state: State, updates: Sequence[Update]) -> Update:
        """Combine all updates into one; defined by subclasses."""
        raise NotImplementedError


def _listed(node: Node) -> tuple[Update, ...]:
    return node if isinstance(node, tuple) else (node,)
