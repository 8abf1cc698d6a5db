"""The batches of a partition, in an order drawn from the seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tasks.data.examples import Examples


def batches(examples: Examples, size: int | None, steps: int, seed: int) -> Iterator[Examples]:
    """`steps` batches in passes over the examples, each pass in an order drawn from the seed.

    A batch lives until the next one is drawn: its memory is reused. The last batch of a pass may be smaller.
    """
    if size is None or size >= len(examples):
        yield from [examples] * steps
        return
    generator = torch.Generator().manual_seed(seed)
    whole = Examples(*(t.new_empty((size, *t.shape[1:])) for t in (examples.inputs, examples.targets)))
    left = steps
    while left > 0:
        order = torch.randperm(len(examples), generator=generator)
        for start in range(0, min(len(order), left * size), size):
            left -= 1
            rows = order[start : start + size]
            count = len(rows)
            batch = whole if count == size else Examples(whole.inputs[:count], whole.targets[:count])
            torch.index_select(examples.inputs, 0, rows, out=batch.inputs)
            torch.index_select(examples.targets, 0, rows, out=batch.targets)
            yield batch
