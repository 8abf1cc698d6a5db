"""Rules of operations that move, copy, join or look up elements without changing them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tasks.matching.tracing.axes import (
    Atom,
    Axes,
    Axis,
    as_atom,
    as_factors,
    broadcast,
    choose,
    cut,
    expand,
    factor,
    find,
    length,
    lone_atom,
    new_axes,
    new_axis,
    pin,
    pin_all,
    unify,
    unify_products,
)
from tasks.matching.tracing.rules.registry import Result, Site, Unknown, dimensions, rule


def stack(tensors: Sequence[Axes]) -> Axes:
    """The axes of tensors stacked along a new first axis.

    Each tensor keeps its own units: they become choices by the index on the new axis.
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
    """The axes of tensors concatenated along the axis at a place."""
    for axes in tensors[1:]:
        for d, axis in enumerate(axes):
            if d != place:
                unify(tensors[0][d], axis)
    joined = list(tensors[0])
    joined[place] = [segment for axes in tensors for segment in expand(axes[place])]
    return joined


def view(axes: Axes, shape: Sequence[int]) -> Axes:
    """The axes of a tensor that is viewed in another shape."""
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
    """Pairs of the shortest runs of axes and of new sizes that have equal products."""
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
    """Split the first axis of a run into the shortest parts that are whole rows of the new shape.

    Empty if none fit.
    """
    if not run or not sizes or not length(run[0]) or length(run[0]) % sizes[0]:
        return []
    parts: list[Axis] = [[]]
    for segment in expand(run[0]):
        if parts[-1] and length(parts[-1]) % (length(run[0]) // sizes[0]) == 0:
            parts.append([])
        parts[-1].append(segment)
    return parts


def _view_of_sum(parts: list[Axis], rest: Axes, sizes: Sequence[int]) -> Axes:
    """The view of a concatenation as rows: each part is viewed alone, then all are stacked or concatenated."""
    rows = [length(part) * sizes[0] // sum(map(length, parts)) for part in parts]
    if set(rows) == {1}:
        return stack([view([part, *rest], sizes[1:]) for part in parts])
    viewed = [view([part, *rest], [count, *sizes[1:]]) for part, count in zip(parts, rows, strict=True)]
    return cat(viewed, 0)


@rule("view reshape _unsafe_view flatten unflatten view_as reshape_as _reshape_alias ravel")
def _view(site: Site, self: Axes, **_: Any) -> Axes:
    return view(self, site.shape)


@rule("permute transpose swapaxes swapdims t mT numpy_T adjoint matrix_H movedim moveaxis")
def _permuted(site: Site, self: Axes, **more: Any) -> Axes:
    """Torch itself says where each axis goes, by running on a tensor whose lengths are the axes' numbers."""
    moved = site.operation(torch.empty(tuple(range(len(self))), device="meta"), **more)
    return [self[d] for d in moved.shape]


@rule("squeeze", "unsqueeze")
def _squeeze(site: Site, self: Axes, **_: Any) -> Axes:
    """Only axes of length 1 are added or removed."""
    long = iter([axis for axis in self if length(axis) != 1])
    return [new_axis(1) if size == 1 else next(long) for size in site.shape]


@rule("expand broadcast_to expand_as repeat tile")
def _repeat(site: Site, self: Axes, **_: Any) -> Axes:
    """Copies are equal, so their order means nothing."""
    axes = [new_axis(1) for _ in site.shape[len(self) :]] + self
    return [
        axis if length(axis) == size else [[Atom(size // length(axis)), *as_factors(axis)]]
        for axis, size in zip(axes, site.shape, strict=True)
    ]


@rule("repeat_interleave")
def _repeat_interleave(site: Site, self: Axes, repeats: Any, dim: int | None = None, **_: Any) -> Axes:
    if not isinstance(repeats, int) or dim is None:
        raise Unknown
    return _replaced(self, dim % len(self), [[*as_factors(self[dim]), Atom(repeats)]])


def _replaced(axes: Axes, place: int, *new: Axis) -> Axes:
    """The axes with the one at a place replaced by others."""
    return [*axes[:place], *new, *axes[place + 1 :]]


@rule("cat", "concat", "concatenate")
def _cat(site: Site, tensors: Sequence[Axes], dim: int = 0) -> Axes:
    tensors = [axes for axes in tensors if math.prod(map(length, axes)) > 0]
    return cat(tensors, dim % len(site.shape))


@rule("stack")
def _stack(site: Site, tensors: Sequence[Axes], dim: int = 0) -> Axes:
    new, *others = stack(tensors)
    place = dim % len(site.shape)
    return [*others[:place], new, *others[place:]]


@rule("chunk", "split", "split_with_sizes", "unsafe_chunk", "unsafe_split", "tensor_split")
def _split(site: Site, self: Axes, dim: int = 0, **_: Any) -> Result:
    place = dim % len(self)
    sizes = [shape[place] for shape in site.shapes]
    atom = lone_atom(self[place])
    if atom is not None and atom.pinned and set(sizes) == {1}:
        return tuple(_chosen(self, place, atom, i, new_axis(1)) for i in range(len(sizes)))
    return tuple(_replaced(self, place, part) for part in cut(self[place], sizes))


@rule("slice", "narrow")
def _slice(site: Site, self: Axes, dim: int = 0, start: int | None = None, step: int = 1, **_: Any) -> Axes:
    place = dim % len(self)
    whole, size = length(self[place]), site.shape[place]
    if size in (0, whole):
        return self if size else _replaced(self, place, new_axis(0))
    first = min(max((start or 0) + (whole if (start or 0) < 0 else 0), 0), whole)
    atom = lone_atom(self[place])
    if atom is not None and atom.pinned and size == 1:
        return _chosen(self, place, atom, first, new_axis(1))
    if step != 1:
        site.mix(self, [place], "a slice with a step")
        return _replaced(self, place, new_axis(size, "a slice with a step"))
    sizes = [s for s in (first, size, whole - first - size) if s > 0]
    return _replaced(self, place, cut(self[place], sizes)[1 if first else 0])


@rule("select")
def _select(site: Site, self: Axes, dim: int, index: int) -> Axes:
    return _selected(self, dim % len(self), index)


@rule("unbind")
def _unbind(site: Site, self: Axes, dim: int = 0) -> Result:
    return tuple(_selected(self, dim % len(self), index) for index in range(len(site.shapes)))


def _selected(axes: Axes, place: int, index: int) -> Axes:
    pin(axes[place], "one of them is selected")
    atom = lone_atom(axes[place])
    return _replaced(axes, place) if atom is None else _chosen(axes, place, atom, index % atom.size)


def _chosen(axes: Axes, place: int, atom: Atom, index: int, *left: Axis) -> Axes:
    """The axes at one index of a pinned atom; at each index the other axes may have different units."""
    return _replaced([choose(axis, find(atom), index) for axis in axes], place, *left)


@rule("index")
def _index(site: Site, self: Axes, indices: Sequence[Axes | None]) -> Axes:
    """Advanced indexing pins the indexed axes and keeps the others."""
    places = [d for d, index in enumerate(indices) if index is not None]
    rest = site.mix(self, places, "it is indexed")
    together = places == list(range(places[0], places[0] + len(places)))
    first = places[0] if together else 0
    added = broadcast(*(index for index in indices if index is not None))
    return [*rest[:first], *added, *rest[first:]]


@rule("index_put")
def _index_put(site: Site, self: Axes, indices: Sequence[Axes | None], values: Axes, **_: Any) -> Axes:
    """The written values have the axes that reading at the same indices would give."""
    if any(index is not None and len(index) != 1 for index in indices):
        raise Unknown  # it cannot be told from a mask over several axes
    for index in indices:
        pin_all(index or [], "it is written to")
    broadcast(_index(site, self, indices), values)
    return self


@rule("index_select")
def _index_select(site: Site, self: Axes, dim: int, index: Axes) -> Axes:
    return _index(site, self, [*[None] * (dim % len(self)), index or new_axes([1])])


@rule("gather")
def _gather(site: Site, self: Axes, index: Axes, dim: int, **_: Any) -> Axes:
    place = dim % len(self)
    site.mix(self, [place], "it is indexed")
    for d, (axis, other) in enumerate(zip(self, index, strict=True)):
        if d != place and length(axis) == length(other):
            unify(axis, other)
        elif d != place:
            pin(axis, "it is indexed")
            pin(other, "it is indexed")
    return index


@rule("embedding")
def _embedding(site: Site, weight: Axes, indices: Axes, **_: Any) -> Axes:
    return [*indices, *site.mix(weight, [0], "vocabulary")]


@rule("constant_pad_nd", "pad")
def _pad(site: Site, self: Axes, pad: Sequence[int], mode: str = "constant", **_: Any) -> Axes:
    padded = list(self)
    for place, before, after in zip(range(len(self) - 1, -1, -1), pad[::2], pad[1::2], strict=False):
        if mode == "constant" and min(before, after) >= 0:
            # All padding is the same constant, so its order means nothing.
            padded[place] = [[Atom(before)]] * (before > 0) + expand(self[place]) + [[Atom(after)]] * (after > 0)
        elif before or after:
            site.mix(self, [place], f"{mode} padding")
            padded[place] = new_axis(site.shape[place], f"{mode} padding")
    return padded


@rule("im2col")
def _im2col(site: Site, self: Axes, kernel_size: Sequence[int], **_: Any) -> Axes:
    *images, channels = site.mix(self, dimensions((-2, -1), len(self)), "spatial")
    window = [Atom(size, "spatial") for size in kernel_size]
    return [*images, [[*as_factors(channels), *window]], new_axis(site.shape[-1], "spatial")]


@rule("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(site: Site, self: Axes, groups: int) -> Axes:
    outer, inner = factor(self[1], groups, length(self[1]) // groups)
    return [self[0], [[*as_factors(inner), *as_factors(outer)]], *self[2:]]


@rule("pixel_shuffle")
def _pixel_shuffle(site: Site, self: Axes, upscale_factor: int) -> Axes:
    factored = [*self[:-3], *factor(self[-3], site.shape[-3], upscale_factor, upscale_factor), *self[-2:]]
    others = site.mix(factored, dimensions((-4, -3, -2, -1), len(factored)), "pixel_shuffle")
    return [*others, *new_axes(site.shape[-2:], "spatial")]


@rule("pixel_unshuffle")
def _pixel_unshuffle(site: Site, self: Axes, downscale_factor: int) -> Axes:
    *images, channels = site.mix(self, dimensions((-2, -1), len(self)), "pixel_unshuffle")
    added = [Atom(downscale_factor, "pixel_unshuffle") for _ in range(2)]
    return [*images, [[*as_factors(channels), *added]], *new_axes(site.shape[-2:], "spatial")]
