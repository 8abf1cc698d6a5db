"""The batches of each replica, and in which order replicas take them: those of one length together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from roundweave.tasks.data.examples import Examples, passes

AHEAD = 1 << 24
"""How many bytes of inputs are copied at once for the next steps; at least those of one step."""


@dataclass
class Course:
    """The batches of one replica, of which the first `taken` are done.

    `rows` are the indices of the examples, (row,), of each batch.
    """

    examples: Examples
    rows: Sequence[torch.Tensor]
    taken: int = 0

    @property
    def following(self) -> int:
        """The length of the next batch, 0 if none is left."""
        return len(self.rows[self.taken]) if self.taken < len(self.rows) else 0

    @property
    def alike(self) -> int:
        """How many of the next batches in a row have the length of the next one."""
        left = self.rows[self.taken :]
        return next((count for count, rows in enumerate(left) if len(rows) != self.following), len(left))


def course(examples: Examples, size: int | None, steps: int, seed: int) -> Course:
    """The course of a replica with the same batches that `roundweave.tasks.algorithms.maps.backprop` would draw.

    `size` is that of a batch, None for all examples.
    """
    device = examples.inputs.device
    orders = [order.to(device) for order in passes(len(examples), size, steps, seed)]
    return Course(examples, [rows for order in orders for rows in order.split(size or len(order))])


@dataclass(frozen=True)
class Phase:
    """Steps that some replicas (`members`, by number) take together, one batch (place, example, *) for each step.

    The first places are those of the members. The other places hold copies of the first member's examples, so that
    the number of places is always the same.
    """

    members: Sequence[int]
    batches: Sequence[Examples]


def phases(courses: Sequence[Course], places: int) -> Iterator[Phase]:
    """Divide all steps of up to `places` replicas into phases.

    A phase is for the replicas whose next batch has the most common length, and lasts while their lengths stay
    equal.
    """
    while any(each.following for each in courses):
        common = Counter(each.following for each in courses if each.following)
        length = max(common, key=lambda each: (common[each], each))
        members = [number for number, each in enumerate(courses) if each.following == length]
        taking = [courses[number] for number in members]
        row = taking[0].examples.inputs[:1].nbytes
        steps = max(1, min(*(each.alike for each in taking), AHEAD // max(1, places * length * row)))
        drawn = [(each.examples, torch.cat([*each.rows[each.taken : each.taken + steps]])) for each in taking]
        for each in taking:
            each.taken += steps
        inputs = _drawn([(each.inputs, rows) for each, rows in drawn], places, steps)
        targets = _drawn([(each.targets, rows) for each, rows in drawn], places, steps)
        yield Phase(members, [Examples(*pair) for pair in zip(inputs, targets, strict=True)])


def _drawn(chosen: Sequence[tuple[torch.Tensor, torch.Tensor]], places: int, steps: int) -> list[torch.Tensor]:
    """Copy rows (row,) of each tensor (examples, *) into one batch (place, example, *) for each step."""
    first, count = chosen[0][0], len(chosen[0][1])
    drawn = first.new_empty((places, count, *first.shape[1:]))
    for place, (tensor, rows) in enumerate(chosen):
        torch.index_select(tensor, 0, rows, out=drawn[place])
    drawn[len(chosen) :] = drawn[0]
    # Each batch gets its own memory: the alignment of a slice depends on the step, and may change bits.
    each = drawn.unflatten(1, (steps, -1)).unbind(1)
    return [batch.clone(memory_format=torch.contiguous_format) for batch in each]
