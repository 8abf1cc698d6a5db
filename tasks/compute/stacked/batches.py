"""The batches of each replica, and in which order replicas take them: those of one length together."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

import torch

from roundweave.tasks.data.examples import Examples, passes


def drawn_rows(examples: Examples, size: int | None, steps: int, seed: int) -> list[torch.Tensor]:
    """The rows, (row,), of each batch that `Examples.batches` would draw of a replica's examples.

    `size` is that of a batch, None for all examples.
    """
    orders = passes(len(examples), size, steps, seed)
    return [rows for order in orders for rows in order.to(examples.inputs.device).split(size or len(order))]


def stacked_steps(
    examples: Sequence[Examples], rows: Iterable[Iterable[torch.Tensor]], places: int
) -> Iterator[tuple[list[int], Examples]]:
    """Yield each step: the replicas that take it, by number, and their batches as one, (place, example, *).

    It is the step of the replicas whose next batch has the most common length. They have the first of the
    `places`; the others hold copies of the first batch, so that the number of places is always the same.
    """
    left = [deque(each) for each in rows]
    while any(left):
        common = Counter(len(each[0]) for each in left if each)
        length = max(common, key=lambda each: (common[each], each))
        members = [number for number, each in enumerate(left) if each and len(each[0]) == length]
        taken = [(examples[number], left[number].popleft()) for number in members]
        inputs, targets = (
            _batch([(getattr(each, part), chosen) for each, chosen in taken], places)
            for part in ("inputs", "targets")
        )
        yield members, Examples(inputs, targets)


def _batch(chosen: Sequence[tuple[torch.Tensor, torch.Tensor]], places: int) -> torch.Tensor:
    """Copy rows (row,) of each tensor (example, *) into memory of their own, (place, row, *).

    It is not a part of a larger batch: a step may have other bits where its batch begins elsewhere in memory.
    """
    first, rows = chosen[0]
    batch = first.new_empty((places, len(rows), *first.shape[1:]))
    for place, (tensor, indices) in enumerate(chosen):
        torch.index_select(tensor, 0, indices, out=batch[place])
    batch[len(chosen) :] = batch[0]
    return batch
