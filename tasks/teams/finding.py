"""Which units of a network the ranks of a team can have shares of.

`tasks.matching` says which axes of which tensors belong together. Of these groups of units, those are shared that
linear layers make and linear layers alone take, with nothing between that mixes them; whether that is so is tried.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import nn

from storage.errors import ModelError, UsageError
from storage.values.layout import Layout
from tasks.matching.groups import Piece, UnitGroups
from tasks.matching.units import find_units
from tasks.networks.objective import layout_of
from tasks.teams.shares import Count, Cut, Shares, Spans

PER_UNIT = (nn.modules.batchnorm._BatchNorm, nn.PReLU)
"""Layers with parameters that treat each unit for itself."""


def candidates(network: nn.Module, inputs: torch.Tensor, ranks: int) -> dict[str, Shares]:
    """By the name of a group of units, how it alone is shared; raises `ModelError` where none can be.

    Whether the network's function stays the same is not tried; `inputs` are (examples, *).
    """
    units, layout = find_units(network, (inputs,)), layout_of(network)
    shared = {name: _shares(network, layout, units, name, ranks) for name in units.groups}
    fitting = {name: shares for name, shares in shared.items() if shares is not None}
    if not fitting:
        raise ModelError(
            f"{type(network).__name__} has no linear layers whose units {ranks} ranks could share; leave ranks out"
        )
    return fitting


def _shares(network: nn.Module, layout: Layout, units: UnitGroups, group: str, ranks: int) -> Shares | None:
    """How a group is shared; None where it is too small, or other layers than linear ones have its units."""
    size = units.groups[group].size
    if units.groups[group].parents or size < ranks:
        return None
    pieces = [piece for piece in units.pieces if group in piece.groups]
    axes: dict[str, set[int]] = {}
    for piece in pieces:
        axes.setdefault(piece.tensor, set()).add(piece.axes[piece.groups.index(group)])
    cuts: dict[str, Cut] = {}
    roles: dict[str, int] = {}
    for tensor, where in axes.items():
        owner, _, name = tensor.rpartition(".")
        module = network.get_submodule(owner)
        (axis, *more), shape = where, units.tensors[tensor]
        mine = [piece for piece in pieces if piece.tensor == tensor]
        cut, whole = _cut(mine, group, axis, shape, size, ranks)
        if type(module) is nn.Linear and whole and not more:
            if name == "weight":
                roles[owner] = axis
        elif not isinstance(module, PER_UNIT) or more:
            return None
        cuts[tensor] = cut
    into, out = (tuple(owner for owner, axis in roles.items() if axis == side) for side in (0, 1))
    if not into or not out:
        return None
    counts = tuple(_counts(network, into, size, units, group, ranks))
    return Shares(ranks, layout, cuts, into, out, counts, (group,))


def _cut(
    pieces: Sequence[Piece], group: str, axis: int, shape: tuple[int, ...], size: int, ranks: int
) -> tuple[Cut, bool]:
    """Where a group's units lie on an axis, cut in equal shares; and whether they are all that there is."""
    unit = np.full(shape[axis], -1)
    stride = prod(shape[axis + 1 :])
    for piece in pieces:
        index = np.full((1,) * len(piece.shape), piece.offset // stride % shape[axis])
        number = np.zeros_like(index)
        for dim, (length, step, of, name) in enumerate(
            zip(piece.shape, piece.strides, piece.axes, piece.groups, strict=True)
        ):
            if of == axis:
                along = np.arange(length).reshape(-1, *[1] * (len(piece.shape) - dim - 1))
                index = index + along * (step // stride)
                number = number + (along if name == group else 0)
        unit[index.reshape(-1)] = np.broadcast_to(number, index.shape).reshape(-1)
    ends = [size * (rank + 1) // ranks for rank in range(ranks)]
    spans = tuple(
        _spans((unit < 0) | ((unit >= first) & (unit < end))) for first, end in zip([0, *ends], ends, strict=False)
    )
    return Cut(axis, spans), bool((unit >= 0).all())


def _spans(kept: np.ndarray) -> Spans:
    """The spans of what is kept of an axis, bool (index,)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]]).astype(np.int8)))
    return tuple((int(first), int(end)) for first, end in zip(edges[::2], edges[1::2], strict=True))


def _counts(
    network: nn.Module, into: Iterable[str], size: int, units: UnitGroups, group: str, ranks: int
) -> Iterator[Count]:
    """What counts heads, or the units of all heads, in the modules that have the layers as parts."""
    inner = [g.size for g in units.groups.values() if g.parents == (group,)]
    if not inner:
        return
    ends = [size * (rank + 1) // ranks for rank in range(ranks)]
    local = [end - first for first, end in zip([0, *ends], ends, strict=False)]
    for owner in dict.fromkeys(name.rpartition(".")[0] for name in into):
        for attribute, value in vars(network.get_submodule(owner)).items():
            if type(value) is int and value in {size, *(size * each for each in inner)}:
                yield Count(owner, attribute, tuple(value // size * each for each in local))


def best(fitting: Mapping[str, Shares]) -> Shares:
    """Of groups that cut one tensor on two axes only one can be shared: those that cut most elements."""
    return together([fitting[name] for name in _chosen(tuple(fitting), fitting)])


def named(fitting: Mapping[str, Shares], names: Sequence[str]) -> Shares:
    """The groups of these names; raises `UsageError` for one that cannot be shared, alone or with the others."""
    for name in names:
        if name not in fitting:
            raise UsageError(
                f"units {name!r} cannot be shared by ranks; those of {', '.join(sorted(fitting))} can"
            )
    chosen = [fitting[name] for name in names]
    for number, shares in enumerate(chosen):
        if clash := [other.units[0] for other in chosen[:number] if shares.cuts.keys() & other.cuts.keys()]:
            there = ", ".join(sorted(fitting))
            raise UsageError(f"units {name!r} cannot be shared by ranks; those of {there} can")
    chosen = [fitting[name] for name in names]
    for number, shares in enumerate(chosen):
        if clash := [other.units[0] for other in chosen[:number] if shares.cuts.keys() & other.cuts.keys()]:
            raise UsageError(f"units {names[number]!r} and {clash[0]!r} meet in one layer; share one of them")
    return together(chosen)


def together(parts: Sequence[Shares]) -> Shares:
    """Several groups shared at once."""
    first = parts[0]
    return replace(
        first,
        cuts={name: cut for part in parts for name, cut in part.cuts.items()},
        into=tuple(name for part in parts for name in part.into),
        out=tuple(name for part in parts for name in part.out),
        counts=tuple(count for part in parts for count in part.counts),
        units=tuple(name for part in parts for name in part.units),
    )


def _chosen(names: tuple[str, ...], fitting: Mapping[str, Shares]) -> tuple[str, ...]:
    """Of these groups those that do not meet in a tensor and cut the most elements."""

    def elements(chosen: tuple[str, ...]) -> int:
        sizes = {spec.name: spec.size for spec in (*fitting[names[0]].layout.params,)}
        return sum(sizes.get(tensor, 0) for name in chosen for tensor in fitting[name].cuts)

    @functools.cache
    def choose(left: tuple[str, ...]) -> tuple[str, ...]:
        if not left:
            return ()
        first, *rest = left
        clear = tuple(name for name in rest if not fitting[name].cuts.keys() & fitting[first].cuts.keys())
        taken = (first, *choose(clear))
        return taken if len(clear) == len(rest) else max(taken, choose(tuple(rest)), key=elements)

    return choose(names)
