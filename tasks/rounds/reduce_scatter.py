"""Reducing in shares (reduce-scatter): each rank reduces its share of the elements, and sends the result to all.

A rank then receives about twice the size of the state, instead of the updates of all other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roundweave.tasks.algorithms.algebra import says
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.shares import joined_update, nodes_share, state_share
from roundweave.tasks.rounds.steps import BlockResult, Outcome, apply_reduced, reduce_blocks

LEAST_BYTES = 4 << 20
"""Bytes that a rank must receive less for reducing in shares to pay, as it costs one more exchange."""


def in_shares(job: Job, ranks: int) -> bool:
    """Whether ranks reduce a job in shares: the reduce goes by element, and the state is large enough."""
    return says(job.work.algorithm.reduce, "elementwise") and pays(job.attempt.open().schema.state_bytes, ranks)


def pays(size: int, ranks: int) -> bool:
    """Whether reducing in shares saves each rank at least `LEAST_BYTES`, for a state of `size` bytes."""
    return (ranks - 1) * size - 2 * (ranks - 1) * size // ranks >= LEAST_BYTES


def block_share(block: BlockResult, share: int, shares: int) -> BlockResult:
    """A block's result with one share of the elements; `share` is its number, from 0."""
    return replace(block, nodes=nodes_share(block.nodes, share, shares))


def reduce_in_shares(job: Job, before: Outcome, blocks: Sequence[BlockResult], group: Communicator) -> Outcome:
    """A round's outcome, from this rank's share of the results of all `blocks`. All ranks get the same bits."""
    part = state_share(before.state, group.rank, group.ranks)
    parts = group.all_gather(reduce_blocks(job.work, part, blocks))
    return apply_reduced(job.work, before, blocks, lambda: joined_update(parts))
