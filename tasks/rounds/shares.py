"""Shares of the elements of states and updates.

A process reduces and applies a large round one share after the other. Ranks may each reduce a share of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.algebra import Algorithm, Node, says
from roundweave.tasks.numerics.devices import moved

SHARE_BYTES = 32 << 20
"""The size of a share of a vector that is reduced and applied at once."""

LEAST_BYTES = 4 << 20
"""The bytes that a rank must save for a share of its own to pay, because it costs one more exchange."""

Nodes = Mapping[tuple[int, int], Node | None]
"""Nodes of the tree over partitions, by (first, one after the last); None if all updates below it are refused."""


def shares_of(algorithm: Algorithm, state: State) -> int:
    """Return the number of shares in which to compute a state's round.

    It is 1 if the state is small, or if elements depend on others.
    """
    if not (says(algorithm.reduce, "elementwise") and says(algorithm.apply, "elementwise")):
        return 1
    return max((vector.nbytes // SHARE_BYTES for vector in state.params.values()), default=1) or 1


def scatters(algorithm: Algorithm, size: int, ranks: int) -> bool:
    """Tell whether ranks reduce a share each.

    They do if the reduce is elementwise and sharing pays for a state of `size` bytes.
    """
    saved = (ranks - 1) * size - 2 * (ranks - 1) * size // ranks
    return says(algorithm.reduce, "elementwise") and saved >= LEAST_BYTES


def nodes_share(nodes: Nodes, share: int, shares: int) -> Nodes:
    """Return one share of the elements of nodes of an elementwise reduce. `share` counts from 0."""
    return {node: _node_share(value, share, shares) for node, value in nodes.items()}


def state_share(state: State, share: int, shares: int) -> State:
    """Return one share of a state, vectors (element,). Share 0 has all buffers and frozen tensors."""
    first = share == 0
    return replace(
        state,
        params=_span(state.params, share, shares),
        buffers=state.buffers if first else {},
        frozen=state.frozen if first else {},
        memory={slot: _span(vectors, share, shares) for slot, vectors in state.memory.items()},
    )


def joined_update(parts: Sequence[Update]) -> Update:
    """Put an update, vectors (element,), together from all its shares in order."""
    return replace(
        parts[0],
        direction=_joined([part.direction for part in parts]),
        extras={slot: _joined([part.extras[slot] for part in parts]) for slot in parts[0].extras},
    )


def by_shares(
    step: Callable[[State, Nodes], tuple[State, Update]], state: State, nodes: Nodes, shares: int
) -> tuple[State, Update]:
    """Return the result of a step for a state and nodes: the next state, and one kept share of their update.

    The step is taken share by share, so that only the new state takes more memory.
    """
    if shares == 1:
        return step(state, nodes)
    whole = moved(replace(state, buffers={}, frozen={}), torch.empty_like)
    for share in reversed(range(shares)):  # the first share, which has the buffers, comes last
        after, update = step(state_share(state, share, shares), nodes_share(nodes, share, shares))
        _place(whole.params, after.params, share, shares)
        for slot, vectors in whole.memory.items():
            _place(vectors, after.memory[slot], share, shares)
    return replace(after, params=whole.params, memory=whole.memory), update


def _place(whole: Vectors, values: Vectors, share: int, shares: int) -> None:
    """Copy one share of vectors (element,) to its place."""
    for name, place in _span(whole, share, shares).items():
        place.copy_(values[name])


def _node_share(node: Any, share: int, shares: int) -> Any:
    """Return one share of a node: an update, or an object with vectors (element,) under an update's names.

    Share 0 has all buffers. No share has what partitions carry. Raises `UsageError` for vectors of other names.
    """
    cuts: dict[str, Callable[[Any], Any]] = {
        "direction": lambda vectors: _span(vectors, share, shares),
        "buffers": lambda vectors: vectors if share == 0 else {},
        "extras": lambda slots: {slot: _span(vectors, share, shares) for slot, vectors in slots.items()},
        "carry": lambda slots: {},
        "observed": lambda vectors: {},
    }
    if isinstance(node, tuple):
        return tuple(_node_share(each, share, shares) for each in node)
    if is_dataclass(node) and not isinstance(node, type):
        given = vars(node).items()
        return replace(node, **{n: cuts[n](v) if n in cuts else _node_share(v, share, shares) for n, v in given})
    return moved(node, _refused)


def _refused(tensor: torch.Tensor) -> torch.Tensor:
    raise UsageError(
        "the reduce says that it is elementwise, and its nodes have tensors that are no direction, buffers or "
        "extras of an update or a dataclass; name them so, or let it not say so"
    )


def _span(vectors: Vectors, share: int, shares: int) -> Vectors:
    """Return one share of each vector, (element,)."""
    return {
        name: vector[len(vector) * share // shares : len(vector) * (share + 1) // shares]
        for name, vector in vectors.items()
    }


def _joined(parts: Sequence[Vectors]) -> Vectors:
    """Put vectors, (element,), together from all their shares in order."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
