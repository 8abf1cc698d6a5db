"""Rules of operations by element, of constants, and of those that move, copy, join or look up elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from roundweave.tasks.matching.tracing.axes import (
    Atom,
    Axes,
    UnitNumbers,
    broadcast,
    concatenation,
    is_axes,
    new_axes,
    pin_all,
    product,
    unify,
)
from roundweave.tasks.matching.tracing.rules.registry import Result, Site, Unknown, rule, tensors


@rule("alias bernoulli complex conj _conj contiguous copy detach dropout imag lift lift_fresh lift_fresh_copy")
@rule("hardswish masked_fill mish native_dropout polar real relu6 rrelu _to_copy where pointwise")
def _elementwise(site: Site, **arguments: Any) -> Axes:
    """Also of all operations that torch tags as pointwise, or makes of such."""
    return broadcast(*tensors(arguments))


@rule("to type_as")
def _converted(site: Site, self: Axes, **_: Any) -> Axes:
    """Return the other tensor only gives the type, and may have any shape."""
    return self


@rule("empty empty_permuted fill full full_like new_empty ones scalar_tensor zero zeros")
def _uniform(site: Site, **_: Any) -> Axes:
    """Return all elements are equal, so their order means nothing."""
    return new_axes(site.shape)


@rule("rand randn rand_like randn_like normal")
def _noise(site: Site, **more: Any) -> Axes:
    """Return what training draws is drawn alike for all elements, so their order means nothing."""
    if is_axes(more.get("mean")) or is_axes(more.get("std")):
        raise Unknown
    return new_axes(site.shape, None if site.training else f"{site.name} draws it")


@rule("arange linspace eye")
def _numbered(site: Site, **more: Any) -> Axes:
    axes = new_axes(site.shape, f"{site.name} numbers it")
    plain = site.name == "arange" and not more.get("start") and more.get("step", 1) == 1
    return UnitNumbers(axes, "places", *axes) if plain else axes


def stack(tensors: Sequence[Axes]) -> Axes:
    """Return the axes of tensors stacked along a new first axis.

    Each tensor keeps its own units: they become choices by the index on the new axis.
    """
    new = Atom(len(tensors), "stack")
    if new.size == 1:
        return [new, *tensors[0]]
    stacked = [new]
    for others in zip(*tensors, strict=True):
        unit = Atom(others[0].size)
        if unit.size > 1:
            unit.chosen[new] = dict(enumerate(others))
        stacked.append(unit)
    return stacked


def cat(tensors: Sequence[Axes], place: int) -> Axes:
    """Return the axes of tensors concatenated along the axis at a place."""
    for axes in tensors[1:]:
        for d, axis in enumerate(axes):
            if d != place:
                unify(tensors[0][d], axis)
    return _replaced(tensors[0], place, concatenation(*(axes[place] for axes in tensors)))


def view(axes: Axes, shape: Sequence[int]) -> Axes:
    """Return the axes of a tensor that is viewed in another shape."""
    viewed: Axes = []
    for run, sizes in _view_groups(axes, shape):
        if len(run) == 1 and len(sizes) == 1:
            viewed.append(run[0])
        elif len(parts := _parts(run, sizes)) > 1:
            viewed += _view_of_sum(parts, run[1:], sizes)
        else:
            viewed += product(*run).factored(*sizes)
    return viewed


def _view_groups(axes: Axes, shape: Sequence[int]) -> Iterator[tuple[Axes, list[int]]]:
    """Pairs of the shortest runs of axes and of new sizes that have equal products."""
    left, sizes = list(axes), list(shape)
    while left or sizes:
        run, group = left[:1], sizes[:1]
        del left[:1], sizes[:1]
        while (have := math.prod(axis.size for axis in run)) != (want := math.prod(group)):
            if have < want:
                run.append(left.pop(0))
            else:
                group.append(sizes.pop(0))
        yield run, group


def _parts(run: Axes, sizes: Sequence[int]) -> list[Atom]:
    """Split the first axis of a run into the shortest parts that are whole rows of the new shape.

    Empty if none fit.
    """
    if not run or not sizes or not run[0].size or run[0].size % sizes[0]:
        return []
    row, parts, part = run[0].size // sizes[0], [], Atom(0)
    for segment in run[0].segments:
        part = concatenation(part, product(*segment))
        if part.size % row == 0:
            parts.append(part)
            part = Atom(0)
    return parts


def _view_of_sum(parts: list[Atom], rest: Axes, sizes: Sequence[int]) -> Axes:
    """The view of a concatenation as rows: each part is viewed alone, then all are stacked or concatenated."""
    rows = [part.size * sizes[0] // sum(part.size for part in parts) for part in parts]
    if set(rows) == {1}:
        return stack([view([part, *rest], sizes[1:]) for part in parts])
    return cat([view([part, *rest], [count, *sizes[1:]]) for part, count in zip(parts, rows, strict=True)], 0)


@rule("view reshape _unsafe_view flatten unflatten view_as reshape_as _reshape_alias ravel")
def _view(site: Site, self: Axes, **_: Any) -> Axes:
    return view(self, site.shape)


@rule("permute transpose t")
def _permuted(site: Site, self: Axes, **more: Any) -> Axes:
    """Torch itself says where each axis goes, by running on a tensor whose lengths are the axes' numbers."""
    moved = site.operation(torch.empty(tuple(range(len(self))), device="meta"), **more)
    return [self[d] for d in moved.shape]


@rule("squeeze unsqueeze")
def _squeeze(site: Site, self: Axes, **_: Any) -> Axes:
    """Only axes of length 1 are added or removed."""
    long = iter([axis for axis in self if axis.size != 1])
    return [Atom(1) if size == 1 else next(long) for size in site.shape]


@rule("view_as_real")
def _parts_of_complex(site: Site, self: Axes) -> Axes:
    return [*self, Atom(2, "real and imaginary parts")]


@rule("view_as_complex")
def _complex_of_parts(site: Site, self: Axes) -> Axes:
    return site.mix(self, [len(self) - 1], "real and imaginary parts")


@rule("expand expand_as repeat")
def _repeat(site: Site, self: Axes, **_: Any) -> Axes:
    """Copies are equal, so their order means nothing."""
    axes = new_axes([1] * (len(site.shape) - len(self))) + self
    return [
        axis if axis.size == size else product(Atom(size // axis.size), axis)
        for axis, size in zip(axes, site.shape, strict=True)
    ]


def _replaced(axes: Axes, place: int, *new: Atom) -> Axes:
    """Return the axes with the one at a place replaced by others."""
    return [*axes[:place], *new, *axes[place + 1 :]]


@rule("cat")
def _cat(site: Site, tensors: Sequence[Axes], dim: int = 0) -> Axes:
    return cat([axes for axes in tensors if all(axis.size for axis in axes)], dim % len(site.shape))


@rule("stack")
def _stack(site: Site, tensors: Sequence[Axes], dim: int = 0) -> Axes:
    new, *others = stack(tensors)
    others.insert(dim % len(site.shape), new)
    return others


@rule("chunk split split_with_sizes unsafe_split")
def _split(site: Site, self: Axes, dim: int = 0, **_: Any) -> Result:
    place = dim % len(self)
    sizes = [shape[place] for shape in site.shapes]
    if set(sizes) == {1} and _is_pinned(self[place]):
        return tuple(_at_index(self, place, i, Atom(1)) for i in range(len(sizes)))
    return tuple(_replaced(self, place, part) for part in self[place].cut(sizes))


@rule("slice")
def _slice(site: Site, self: Axes, dim: int = 0, start: int | None = None, step: int = 1, **_: Any) -> Axes:
    place = dim % len(self)
    whole, size = self[place].size, site.shape[place]
    if size in (0, whole):
        return self if size else _replaced(self, place, Atom(0))
    first = min(max((start or 0) + (whole if (start or 0) < 0 else 0), 0), whole)
    if size == 1 and _is_pinned(self[place]):
        return _at_index(self, place, first, Atom(1))
    if step != 1 and size * step == whole:  # one of several that are interleaved
        return _select(site, _replaced(self, place, *view([self[place]], [size, step])), place + 1, first)
    if step != 1:
        site.mix(self, [place], "a slice with a step")
        return _replaced(self, place, Atom(size, "a slice with a step"))
    return _replaced(self, place, self[place].cut([first, size, whole - first - size])[1])


@rule("select")
def _select(site: Site, self: Axes, dim: int, index: int) -> Axes:
    self[dim].pin("one of them is selected")
    return _at_index(self, dim % len(self), index)


@rule("unbind")
def _unbind(site: Site, self: Axes, dim: int = 0) -> Result:
    return tuple(_select(site, self, dim, index) for index in range(len(site.shapes)))


def _is_pinned(axis: Atom) -> bool:
    return axis.whole is not None and axis.whole.pinned is not None


def _at_index(axes: Axes, place: int, index: int, *left: Atom) -> Axes:
    """Return the axes at one index of a pinned axis, at each of which the other axes may have different units."""
    beside = axes[place].whole
    if beside is not None:
        axes = [axis.at(beside, index % beside.size) for axis in axes]
    return _replaced(axes, place, *left)


@rule("index")
def _index(site: Site, self: Axes, indices: Sequence[Axes | None]) -> Axes:
    """Advanced indexing keeps the axes that are not indexed, and pins the others unless it is by their numbers."""
    places = [d for d, index in enumerate(indices) if index is not None]
    rest = _looked_up(site, self, places, [index for index in indices if index is not None], "it is indexed")
    together = places == list(range(places[0], places[0] + len(places)))
    first = places[0] if together else 0
    added = broadcast(*(index for index in indices if index is not None))
    return [*rest[:first], *added, *rest[first:]]


def _looked_up(site: Site, self: Axes, places: Sequence[int], indices: Sequence[Axes], why: str) -> Axes:
    """Return the axes besides those along which parts are looked up, which are pinned for the reason `why`.

    They are not if each index is the number of one of their units: another order of these changes both.
    """
    (index, *more), units = indices, self[places[0]]
    if more or not site.reads(index, "units", units.size):
        rest = site.mix(self, places, why)
    else:
        unify(units, index.of[0])
        rest = [axis for d, axis in enumerate(self) if d not in places]
        runs = index[0].root.runs if len(index) == 1 else None
        sorted_rows = runs is not None and runs.root is units.root
        site.dependences += [([units], []), (rest, [units] if sorted_rows else [])]
    if not more:
        site.looked_up.append((units, rest, index))
    return rest


@rule("index_put")
def _index_put(
    site: Site, self: Axes, indices: Sequence[Axes | None], values: Axes, accumulate: bool = False
) -> Axes:
    """Return the written values have the axes that reading at the same indices would give."""
    if any(index is not None and len(index) != 1 for index in indices):
        raise Unknown  # it cannot be told from a mask over several axes
    size, order = self[0].size, indices[0]
    whole = len(self) == 1 and not accumulate and site.reads(values, "places", size)
    if whole and site.reads(order, "order", size):
        unify(self[0], order.of[0])
        # The number of each sorted row is written to where it came from.
        return UnitNumbers(self, "units", order[0])
    for index in indices:
        pin_all(index or [], "it is written to")
    broadcast(_index(site, self, indices), values)
    return self


@rule("gather")
def _gather(site: Site, self: Axes, index: Axes, dim: int, **_: Any) -> Axes:
    place = dim % len(self)
    if site.reads(index, "units", self[place].size):
        unify(self[place], index.of[0])
        site.apart([self[place]])
        site.apart([axis for d, axis in enumerate(self) if d != place])
    else:
        site.mix(self, [place], "it is indexed")
    for d, (axis, other) in enumerate(zip(self, index, strict=True)):
        if d != place and axis.size == other.size:
            unify(axis, other)
        elif d != place:
            pin_all([axis, other], "it is indexed")
    return list(index)


@rule("embedding")
def _embedding(site: Site, weight: Axes, indices: Axes, **_: Any) -> Axes:
    return [*indices, *_looked_up(site, weight, [0], [indices], "vocabulary")]


@rule("constant_pad_nd pad")
def _pad(site: Site, self: Axes, pad: Sequence[int], mode: str = "constant", **_: Any) -> Axes:
    padded = list(self)
    for place, before, after in zip(range(len(self) - 1, -1, -1), pad[::2], pad[1::2], strict=False):
        if mode == "constant" and min(before, after) >= 0:
            # All padding is the same constant, so its order means nothing.
            padded[place] = concatenation(Atom(before), self[place], Atom(after))
        elif before or after:
            site.mix(self, [place], f"{mode} padding")
            padded[place] = Atom(site.shape[place], f"{mode} padding")
    return padded
