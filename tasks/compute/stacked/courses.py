"""The batches of each replica, and in which order replicas take them: those of one length together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, repeat

import torch

from tasks.data.examples import Examples
from tasks.maps.backprop import passes

AHEAD = 1 << 24
"""How many bytes of inputs are copied at once for the next steps; at least those of one step."""


@dataclass
class Course:
    """The batches of one replica, of which the first `taken` are done.

    `rows` are indices of the examples, (row,), for one batch after the other; `lengths` is how many rows each
    batch has.
    """

    examples: Examples
    rows: torch.Tensor
    lengths: Sequence[int]
    taken: int = 0

    @property
    def following(self) -> int:
        """The length of the next batch, 0 if none is left."""
        return self.lengths[self.taken] if self.taken < len(self.lengths) else 0

    @property
    def alike(self) -> int:
        """How many of the next batches in a row have the length of the next one."""
        length, left = self.following, self.lengths[self.taken :]
        return next((count for count, other in enumerate(left) if other != length), len(left))


def course(examples: Examples, size: int | None, steps: int, seed: int) -> Course:
    """The course of a replica with the same batches that `tasks.maps.backprop` would draw.

    `size` is that of a batch, None for all examples.
    """
    rows = torch.cat(list(passes(len(examples), size, steps, seed)))
    return Course(examples, rows, lengths_of(len(examples), size, steps))


def lengths_of(examples: int, size: int | None, steps: int) -> list[int]:
    """The length of each batch, for as many `steps`; `size` is that of a full batch, None for all examples."""
    size = min(size or examples, examples)
    whole, rest = divmod(examples, size)
    return list(islice(cycle([*repeat(size, whole), *repeat(rest, rest > 0)]), steps))


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
        drawn = [(each.examples, _next_rows(each, steps, length)) for each in taking]
        inputs = _drawn([(each.inputs, rows) for each, rows in drawn], places, steps)
        targets = _drawn([(each.targets, rows) for each, rows in drawn], places, steps)
        yield Phase(members, [Examples(*pair) for pair in zip(inputs, targets, strict=True)])


def _next_rows(each: Course, steps: int, length: int) -> torch.Tensor:
    begin = sum(each.lengths[: each.taken])
    each.taken += steps
    return each.rows[begin : begin + steps * length]


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
