"""Reducing in shares (reduce-scatter): each rank reduces its share of the elements, and sends the result to all.

A rank then receives about twice the size of the state, instead of the updates of all other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.compute.communicator import Communicator
from tasks.reduces.mean import Mean, WeightedSum
from tasks.rounds.job import Job
from tasks.rounds.steps import BlockResult, Outcome, apply_reduced, reduce_blocks

LEAST_BYTES = 4 << 20
"""Bytes that a rank must receive less for reducing in shares to pay, as it costs one more exchange."""


def in_shares(job: Job, ranks: int) -> bool:
    """Whether ranks reduce a job in shares: the reduce is a mean, and the state is large enough."""
    return type(job.work.algorithm.reduce) is Mean and pays(job.attempt.open().schema.state_bytes, ranks)


def pays(size: int, ranks: int) -> bool:
    """Whether reducing in shares saves each rank at least `LEAST_BYTES`, for a state of `size` bytes."""
    return (ranks - 1) * size - 2 * (ranks - 1) * size // ranks >= LEAST_BYTES


def block_share(block: BlockResult, share: int, shares: int) -> BlockResult:
    """A block's result with one share of the elements; `share` is its number, from 0."""
    return replace(block, nodes={node: _node_share(value, share, shares) for node, value in block.nodes.items()})


def reduce_in_shares(job: Job, before: Outcome, blocks: Sequence[BlockResult], group: Communicator) -> Outcome:
    """A round's outcome, from this rank's share of the results of all `blocks`. All ranks get the same bits."""
    part = state_share(before.state, group.rank, group.ranks)
    parts = group.all_gather(reduce_blocks(job.work, part, blocks))
    return apply_reduced(job.work, before, blocks, lambda: joined_update(parts))


def state_share(state: State, share: int, shares: int) -> State:
    """One share of a state, vectors (element,). Share 0 has all buffers and frozen tensors."""
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


def _node_share(node: Update | WeightedSum | None, share: int, shares: int) -> Update | WeightedSum | None:
    """One share of a node, vectors (element,). Share 0 has all buffers; no share has what partitions carry."""
    if node is None:
        return None
    return replace(
        replace(node, carry={}) if isinstance(node, Update) else node,
        direction=_span(node.direction, share, shares),
        buffers=node.buffers if share == 0 else {},
        extras={slot: _span(vectors, share, shares) for slot, vectors in node.extras.items()},
    )


def _span(vectors: Vectors, share: int, shares: int) -> Vectors:
    """One share of each vector, (element,)."""
    return {
        name: vector[len(vector) * share // shares : len(vector) * (share + 1) // shares]
        for name, vector in vectors.items()
    }


def _joined(parts: Sequence[Vectors]) -> Vectors:
    """Put vectors, (element,), together from all their shares in order."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
