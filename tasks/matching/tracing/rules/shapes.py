"""Operations that move elements without changing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tasks.matching.tracing.axes import (
    Atom,
    Axes,
    Axis,
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
)
from tasks.matching.tracing.rules.registry import Result, Site, Unknown, dimensions, rule
from tasks.matching.tracing.views import cat, stack, view


@rule(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as", "_reshape_alias", "ravel"
)
def _view(site: Site, self: Axes, **_: Any) -> Axes:
    return view(self, site.shape)


@rule("permute")
def _permute(site: Site, self: Axes, dims: Sequence[int]) -> Axes:
    return [self[d] for d in dims]


@rule("transpose", "swapaxes", "swapdims")
def _transpose(site: Site, self: Axes, **which: int) -> Axes:
    first, second = which.values()
    exchanged = list(self)
    exchanged[first], exchanged[second] = self[second], self[first]
    return exchanged


@rule("t", "mT", "numpy_T", "adjoint", "matrix_H")
def _turned(site: Site, self: Axes) -> Axes:
    return self if len(self) < 2 else [*self[:-2], self[-1], self[-2]] if site.name != "numpy_T" else self[::-1]


@rule("movedim", "moveaxis")
def _movedim(site: Site, self: Axes, source: Any, destination: Any) -> Axes:
    sources, places = (dimensions(value, len(self)) for value in (source, destination))
    moved: list[Axis | None] = [None] * len(self)
    for s, d in zip(sources, places, strict=True):
        moved[d] = self[s]
    rest = iter([axis for d, axis in enumerate(self) if d not in sources])
    return [next(rest) if axis is None else axis for axis in moved]


@rule("unsqueeze")
def _unsqueeze(site: Site, self: Axes, dim: int) -> Axes:
    place = dim % (len(self) + 1)
    return [*self[:place], new_axis(1), *self[place:]]


@rule("squeeze")
def _squeeze(site: Site, self: Axes, dim: Any = None) -> Axes:
    dims = dimensions(dim, len(self))
    return [axis for d, axis in enumerate(self) if d not in dims or length(axis) != 1]


@rule("expand", "broadcast_to", "expand_as")
def _expand(site: Site, self: Axes, **_: Any) -> Axes:
    """Copies along a dimension are alike, so their order says nothing."""
    axes = [new_axis(1) for _ in site.shape[len(self) :]] + self
    return [axis if length(axis) == size else new_axis(size) for axis, size in zip(axes, site.shape, strict=True)]


@rule("repeat", "tile")
def _repeat(site: Site, self: Axes, **_: Any) -> Axes:
    axes = [new_axis(1) for _ in site.shape[len(self) :]] + self
    return [
        axis if length(axis) == size else [[Atom(size // length(axis)), *as_factors(axis)]]
        for axis, size in zip(axes, site.shape, strict=True)
    ]


@rule("repeat_interleave")
def _repeat_interleave(site: Site, self: Axes, repeats: Any, dim: int | None = None, **_: Any) -> Axes:
    if not isinstance(repeats, int) or dim is None:
        raise Unknown
    repeated = list(self)
    repeated[dim] = [[*as_factors(self[dim]), Atom(repeats)]]
    return repeated


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
        return tuple(_chosen(self, place, atom, i, keep=True) for i in range(len(sizes)))
    return tuple([*self[:place], part, *self[place + 1 :]] for part in cut(self[place], sizes))


@rule("slice", "narrow")
def _slice(site: Site, self: Axes, dim: int = 0, start: int | None = None, step: int = 1, **_: Any) -> Axes:
    place = dim % len(self)
    whole, size = length(self[place]), site.shape[place]
    if size in (0, whole):
        return self if size else [*self[:place], new_axis(0), *self[place + 1 :]]
    first = min(max((start or 0) + (whole if (start or 0) < 0 else 0), 0), whole)
    atom = lone_atom(self[place])
    if atom is not None and atom.pinned and size == 1:
        return _chosen(self, place, atom, first, keep=True)
    if step != 1:
        site.mix(self, [place], "a slice with a step")
        return [*self[:place], new_axis(size, "a slice with a step"), *self[place + 1 :]]
    sizes = [s for s in (first, size, whole - first - size) if s > 0]
    return [*self[:place], cut(self[place], sizes)[1 if first else 0], *self[place + 1 :]]


@rule("select")
def _select(site: Site, self: Axes, dim: int, index: int) -> Axes:
    return _selected(self, dim % len(self), index)


@rule("unbind")
def _unbind(site: Site, self: Axes, dim: int = 0) -> Result:
    return tuple(_selected(self, dim % len(self), index) for index in range(len(site.shapes)))


def _selected(axes: Axes, place: int, index: int) -> Axes:
    pin(axes[place], "one of them is selected")
    atom = lone_atom(axes[place])
    if atom is None:
        return [*axes[:place], *axes[place + 1 :]]
    return _chosen(axes, place, atom, index % atom.size, keep=False)


def _chosen(axes: Axes, place: int, atom: Atom, index: int, keep: bool) -> Axes:
    """The axes at one index of a pinned atom, beside which every other unit may be another one."""
    chosen = [choose(axis, find(atom), index) for axis in axes]
    return [*chosen[:place], *([new_axis(1)] if keep else []), *chosen[place + 1 :]]


@rule("index")
def _index(site: Site, self: Axes, indices: Sequence[Axes | None]) -> Axes:
    """Advanced indexing pins the axes that are indexed; the others go on."""
    places = [d for d, index in enumerate(indices) if index is not None]
    rest = site.mix(self, places, "it is indexed")
    together = places == list(range(places[0], places[0] + len(places)))
    first = places[0] if together else 0
    added = broadcast(*(index for index in indices if index is not None))
    return [*rest[:first], *added, *rest[first:]]


@rule("index_put")
def _index_put(site: Site, self: Axes, indices: Sequence[Axes | None], values: Axes, **_: Any) -> Axes:
    """What is written has the axes of what would be read."""
    if any(index is not None and len(index) != 1 for index in indices):
        raise Unknown  # a mask of several axes looks the same
    for index in indices:
        pin_all(index or [], "it is written to")
    broadcast(_index(site, self, indices), values)
    return self


@rule("index_select")
def _index_select(site: Site, self: Axes, dim: int, index: Axes) -> Axes:
    site.mix(self, [dim % len(self)], "it is indexed")
    selected = list(self)
    selected[dim] = index[0] if index else new_axis(1)
    return selected


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
    for i in range(0, len(pad), 2):
        place = len(self) - 1 - i // 2
        before, after = pad[i], pad[i + 1]
        if not before and not after:
            continue
        if mode != "constant" or before < 0 or after < 0:
            site.mix(self, [place], f"{mode} padding")
            padded[place] = new_axis(site.shape[place], f"{mode} padding")
        else:
            # All padded units are the same constant, so their order says nothing.
            padded[place] = (
                [[Atom(n)] for n in (before,) if n] + expand(self[place]) + [[Atom(n)] for n in (after,) if n]
            )
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
    kept = site.mix(factored, dimensions((-4, -3, -2, -1), len(factored)), "pixel_shuffle")
    return [*kept, *new_axes(site.shape[-2:], "spatial")]


@rule("pixel_unshuffle")
def _pixel_unshuffle(site: Site, self: Axes, downscale_factor: int) -> Axes:
    *images, channels = site.mix(self, dimensions((-2, -1), len(self)), "pixel_unshuffle")
    added = [Atom(downscale_factor, "pixel_unshuffle") for _ in range(2)]
    return [*images, [[*as_factors(channels), *added]], *new_axes(site.shape[-2:], "spatial")]
