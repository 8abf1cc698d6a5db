"""The order in which the examples of a partition are read: in passes, each in an order drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch


def passes(examples: int, size: int | None, steps: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield the rows, (row,), of each pass over so many examples; all passes together are `steps` batches."""
    if size is None or size >= examples:
        yield from [torch.arange(examples)] * steps
        return
    generator = torch.Generator().manual_seed(seed)
    for done in range(0, steps, -(-examples // size)):
        yield torch.randperm(examples, generator=generator)[: (steps - done) * size]


def grouped_passes(groups: np.ndarray, size: int, steps: int, seed: int) -> Iterator[np.ndarray]:
    """Do as `passes` does, with the rows of a group one after the other, as they are read together.

    `groups` is the group of each example, int64 (examples,). The order of the groups is random, and so is that of
    the rows of each group.
    """
    generator = np.random.default_rng(seed)
    _, places = np.unique(groups, return_inverse=True)
    for done in range(0, steps, -(-len(groups) // size)):
        rank = generator.permutation(places.max() + 1)[places]
        order = np.lexsort((generator.permutation(len(groups)), rank))
        yield order[: (steps - done) * size]
