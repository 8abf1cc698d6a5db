"""The binary tree over partitions along which updates are reduced, and the base of reduces that gather."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from roundweave.storage.values.state import State, Update
from roundweave.tasks.algorithms.algebra import Node, Reduce


def cover(first: int, last: int, low: int, high: int) -> list[tuple[int, int]]:
    """Return the fewest nodes of the tree over partitions [first, last) that make up [low, high)."""
    if last <= low or high <= first:
        return []
    if low <= first and last <= high:
        return [(first, last)]
    middle = (first + last + 1) // 2
    return cover(first, middle, low, high) + cover(middle, last, low, high)


def fold(reduce: Reduce, node: tuple[int, int], known: Callable[[int, int], Node | None]) -> Node | None:
    """Compute a node of the tree from known nodes. None stands for absent partitions.

    `known(first, last)` raises KeyError for an unknown node, which is then computed from its halves. The shape of
    the tree depends on the indices alone, so the bits do not depend on who computed which node.
    """
    first, last = node
    try:
        return known(first, last)
    except KeyError:
        middle = (first + last + 1) // 2
        left, right = fold(reduce, (first, middle), known), fold(reduce, (middle, last), known)
        if left is None or right is None:
            return right if left is None else left
        return reduce.join(left, right)


def fold_updates(reduce: Reduce, node: tuple[int, int], updates: Mapping[int, Node | None]) -> Node | None:
    """Compute a node of the tree from the updates of its partitions. None, or no entry, stands for absent ones."""
    present = sorted(updates)

    def leaf(first: int, last: int) -> Node | None:
        if bisect_left(present, first) == bisect_left(present, last):
            return None
        if last - first > 1:
            raise KeyError(first, last)
        return updates[first]

    return fold(reduce, node, leaf)


def reduce_all(reduce: Reduce, state: State, updates: Sequence[Update]) -> Update:
    """Reduce a list of updates to one.

    Args:
        reduce: The reduce. It joins the updates along the tree of partitions, or gathers them.
        state: The state from which the updates were mapped.
        updates: The accepted updates, in the order of their partitions.

    Returns:
        One update, with vectors (element,) like those of the given updates.

    Example:
        >>> import torch
        >>> import roundweave as rw
        >>> state = rw.State({"float64": torch.zeros(2, dtype=torch.float64)})
        >>> deltas = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        >>> updates = [rw.Update({"float64": delta}) for delta in deltas]
        >>> rw.reduce_all(rw.Mean(), state, updates).direction["float64"]
        tensor([1., 0.], dtype=torch.float64)
    """
    reduced = reduce.finish(state, fold_updates(reduce, (0, len(updates)), dict(enumerate(updates))))
    return replace(reduced, count=len(updates))


@dataclass(frozen=True)
class Gather(Reduce):
    """Base class of reduces that need all updates at once, ordered by partition.

    A subclass defines ``__call__(state, updates) -> Update``. The base class defines `join` and `finish`.

    >>> class Last(Gather):
    ...     def __call__(self, state, updates):
    ...         return updates[-1]
    >>> node = Last().join(Last().join(Update({}, weight=1), Update({}, weight=2)), Update({}, weight=3))
    >>> Last().finish(State({}), node).weight
    3
    """

    gathers = True

    def join(self, left: Node, right: Node) -> Node:
        return (*_listed(left), *_listed(right))

    def finish(self, state: State, node: Node) -> Update:
        """Call the reduce on all updates."""
        return self(state, _listed(node))

    def __call__(self, state: State, updates: Sequence[Update]) -> Update:
        """Combine all updates into one. Subclasses define this method."""
        raise NotImplementedError


def _listed(node: Node) -> tuple[Update, ...]:
    return node if isinstance(node, tuple) else (node,)
