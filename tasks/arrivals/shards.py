"""The shards of a parameter server: equal spans of every vector; buffers and what is frozen lie in the first.

An apply sees a shard as a state of its own: one that computes a norm over all parameters has one for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from storage.values.state import State, Update
from storage.values.tensors import Vectors


def state_shard(state: State, shard: int, shards: int) -> State:
    """The part of a state, vectors (element,), that a shard holds."""
    first = shard == 0
    return replace(
        state,
        params=span(state.params, shard, shards),
        buffers=state.buffers if first else {},
        frozen=state.frozen if first else {},
        memory={slot: span(vectors, shard, shards) for slot, vectors in state.memory.items()},
    )


def update_shard(update: Update, shard: int, shards: int) -> Update:
    """The part of an update, vectors (element,), that goes to a shard; what a partition carries goes to none."""
    return replace(
        update,
        direction=span(update.direction, shard, shards),
        buffers=update.buffers if shard == 0 else {},
        extras={name: span(vectors, shard, shards) for name, vectors in update.extras.items()},
        carry={},
    )


def joined(parts: Sequence[State]) -> State:
    """The state, vectors (element,), of which these are the shards in order."""
    if len(parts) == 1:
        return parts[0]
    slots = parts[0].memory
    return replace(
        parts[0],
        params=joined_vectors([part.params for part in parts]),
        memory={slot: joined_vectors([part.memory[slot] for part in parts]) for slot in slots},
    )


def span(vectors: Vectors, shard: int, shards: int) -> Vectors:
    """The part of vectors, (element,), that a shard holds."""
    if shards == 1:
        return vectors
    return {
        name: vector[len(vector) * shard // shards : len(vector) * (shard + 1) // shards]
        for name, vector in vectors.items()
    }


def joined_vectors(parts: Sequence[Vectors]) -> Vectors:
    """The vectors, (element,), of which these are the parts of all shards in order."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
