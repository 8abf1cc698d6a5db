"""Reducing in shares: each rank reduces its share of all elements, and tells the others what comes of it.

A rank then receives about twice the state and not the updates of all others.
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
"""What it must spare each rank of what it receives: there is a message more to wait for."""


def in_shares(job: Job, ranks: int) -> bool:
    """Whether so many ranks reduce in shares: a mean, whose nodes can be cut, of a state that is not small."""
    return type(job.work.algorithm.reduce) is Mean and pays(job.attempt.open().tensors.state_bytes, ranks)


def pays(size: int, ranks: int) -> bool:
    """Whether so many ranks are spared enough by reducing a state of so many bytes in shares."""
    return (ranks - 1) * size - 2 * (ranks - 1) * size // ranks >= LEAST_BYTES


def block_share(block: BlockResult, share: int, shares: int) -> BlockResult:
    """What a block gives of one share of all elements."""
    return replace(block, nodes={node: _node_share(value, share, shares) for node, value in block.nodes.items()})


def reduce_in_shares(job: Job, before: Outcome, blocks: Sequence[BlockResult], group: Communicator) -> Outcome:
    """A round's outcome from this rank's share of what all blocks give; all ranks have it, to the same bits."""
    part = state_share(before.state, group.rank, group.ranks)
    parts = group.all_gather(reduce_blocks(job.work, part, blocks))
    return apply_reduced(job.work, before, blocks, lambda: joined_update(parts))


def state_share(state: State, share: int, shares: int) -> State:
    """The part of a state, vectors (element,), that a rank reduces; buffers and what is frozen are the first's."""
    first = share == 0
    return replace(
        state,
        params=_span(state.params, share, shares),
        buffers=state.buffers if first else {},
        frozen=state.frozen if first else {},
        memory={slot: _span(vectors, share, shares) for slot, vectors in state.memory.items()},
    )


def joined_update(parts: Sequence[Update]) -> Update:
    """The update, vectors (element,), of which these are the shares in order."""
    return replace(
        parts[0],
        direction=_joined([part.direction for part in parts]),
        extras={slot: _joined([part.extras[slot] for part in parts]) for slot in parts[0].extras},
    )


def _node_share(node: Update | WeightedSum | None, share: int, shares: int) -> Update | WeightedSum | None:
    """What goes to a rank: a span of each vector, (element,); buffers go to the first, what is carried to none."""
    if node is None:
        return None
    return replace(
        replace(node, carry={}) if isinstance(node, Update) else node,
        direction=_span(node.direction, share, shares),
        buffers=node.buffers if share == 0 else {},
        extras={slot: _span(vectors, share, shares) for slot, vectors in node.extras.items()},
    )


def _span(vectors: Vectors, share: int, shares: int) -> Vectors:
    """The part of vectors, (element,), that a rank reduces."""
    return {
        name: vector[len(vector) * share // shares : len(vector) * (share + 1) // shares]
        for name, vector in vectors.items()
    }


def _joined(parts: Sequence[Vectors]) -> Vectors:
    """The vectors, (element,), of which these are the parts of all ranks in order."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
