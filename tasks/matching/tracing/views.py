"""Tensors laid beside and after one another, and the same elements in another shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tasks.matching.tracing.axes import (
    Atom,
    Axes,
    Axis,
    as_atom,
    as_factors,
    expand,
    length,
    unify,
    unify_products,
)


def stack(tensors: Sequence[Axes]) -> Axes:
    """The axes of tensors beside one another, along a new first axis.

    They keep units of their own where they are free: choices beside the new axis.
    """
    new = Atom(len(tensors), "stack")
    stacked: Axes = [[[new]]]
    for others in zip(*tensors, strict=True):
        unit = Atom(length(others[0]))
        if unit.size > 1:
            unit.chosen[new] = {i: as_atom(other) for i, other in enumerate(others)}
        stacked.append([[unit]])
    return stacked


def cat(tensors: Sequence[Axes], place: int) -> Axes:
    """The axes of tensors after one another along an axis."""
    for axes in tensors[1:]:
        for d, axis in enumerate(axes):
            if d != place:
                unify(tensors[0][d], axis)
    joined = list(tensors[0])
    joined[place] = [segment for axes in tensors for segment in expand(axes[place])]
    return joined


def view(axes: Axes, shape: Sequence[int]) -> Axes:
    """The axes of the same elements in another shape."""
    viewed: Axes = []
    for run, sizes in _view_groups(axes, shape):
        if len(run) == 1 and len(sizes) == 1:
            viewed.append(run[0])
        elif len(parts := _parts(run, sizes)) > 1:
            viewed += _view_of_sum(parts, run[1:], sizes)
        else:
            targets = [Atom(size) for size in sizes]
            unify_products([atom for axis in run for atom in as_factors(axis)], list(targets))
            viewed += [[[atom]] for atom in targets]
    return viewed


def _view_groups(axes: Axes, shape: Sequence[int]) -> Iterator[tuple[Axes, list[int]]]:
    """The shortest runs of axes and sizes with equal products."""
    left, sizes = list(axes), list(shape)
    while left or sizes:
        run, group = left[:1], sizes[:1]
        del left[:1], sizes[:1]
        while (have := math.prod(map(length, run))) != (want := math.prod(group)):
            if have < want:
                run.append(left.pop(0))
            else:
                group.append(sizes.pop(0))
        yield run, group


def _parts(run: Axes, sizes: Sequence[int]) -> list[Axis]:
    """The first axis as parts of whole rows, each as short as may be; none where no row fits in it."""
    if not run or not sizes or not length(run[0]) or length(run[0]) % sizes[0]:
        return []
    parts: list[Axis] = [[]]
    for segment in expand(run[0]):
        if parts[-1] and length(parts[-1]) % (length(run[0]) // sizes[0]) == 0:
            parts.append([])
        parts[-1].append(segment)
    return parts


def _view_of_sum(parts: list[Axis], rest: Axes, sizes: Sequence[int]) -> Axes:
    """What was joined and is viewed as rows: each part is viewed alone, and these are stacked or joined."""
    rows = [length(part) * sizes[0] // sum(map(length, parts)) for part in parts]
    if set(rows) == {1}:
        return stack([view([part, *rest], sizes[1:]) for part in parts])
    viewed = [view([part, *rest], [count, *sizes[1:]]) for part, count in zip(parts, rows, strict=True)]
    return cat(viewed, 0)
