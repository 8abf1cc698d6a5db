"""What replicas have before them, and in which order it is taken: steps of batches of one length together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, repeat

import torch

from tasks.data.examples import Examples
from tasks.maps.batches import passes

AHEAD = 1 << 24
"""Bytes of inputs that are drawn at once, if they are more than those of one step."""


@dataclass
class Course:
    """A replica's batches: its examples, their rows one batch after the other, and how long each batch is.

    So many of the batches are `taken`.
    """

    examples: Examples
    rows: torch.Tensor
    lengths: Sequence[int]
    taken: int = 0

    @property
    def following(self) -> int:
        """How long the next batch is, 0 where none is left."""
        return self.lengths[self.taken] if self.taken < len(self.lengths) else 0

    @property
    def alike(self) -> int:
        """How many of the next batches are as long as the next one."""
        length, left = self.following, self.lengths[self.taken :]
        return next((count for count, other in enumerate(left) if other != length), len(left))


def course(examples: Examples, size: int | None, steps: int, seed: int) -> Course:
    """The batches that `batches` would give."""
    rows = torch.cat(list(passes(len(examples), size, steps, seed)))
    return Course(examples, rows, lengths_of(len(examples), size, steps))


def lengths_of(examples: int, size: int | None, steps: int) -> list[int]:
    """How long each batch is."""
    size = min(size or examples, examples)
    whole, rest = divmod(examples, size)
    return list(islice(cycle([*repeat(size, whole), *repeat(rest, rest > 0)]), steps))


@dataclass(frozen=True)
class Phase:
    """Steps that some replicas, by number, take together: batches (place, example, *), a place for each.

    Places beyond them hold copies of the first, so that there are always as many.
    """

    members: Sequence[int]
    batches: Sequence[Examples]


def phases(courses: Sequence[Course], places: int) -> Iterator[Phase]:
    """All steps of up to so many replicas, first those whose length most of them have before them."""
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
    """Rows (row,) of tensors (examples, *), for each step (place, example, *)."""
    first, count = chosen[0][0], len(chosen[0][1])
    drawn = first.new_empty((places, count, *first.shape[1:]))
    for place, (tensor, rows) in enumerate(chosen):
        torch.index_select(tensor, 0, rows, out=drawn[place])
    drawn[len(chosen) :] = drawn[0]
    # In memory of its own, as where it begins may decide bits, and not at what steps others are.
    each = drawn.unflatten(1, (steps, -1)).unbind(1)
    return [batch.clone(memory_format=torch.contiguous_format) for batch in each]
