"""Find the unit groups of a network that ranks can divide among them.

`tasks.matching` finds the unit groups: which axes of which tensors belong together. A group can be divided if
linear layers make its units and only linear layers take them, and nothing between these layers mixes units.
Whether something does is tried in `trying`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import nn

from storage.errors import ModelError, UsageError
from storage.values.layout import Layout
from tasks.compute.tensor_parallel.attention import attention_of
from tasks.compute.tensor_parallel.shares import Count, Cut, Shares, Spans, even
from tasks.matching.groups import Piece, UnitGroups
from tasks.matching.units import find_units
from tasks.networks.objective import layout_of

PER_UNIT = (nn.modules.batchnorm._BatchNorm, nn.PReLU)
"""Layers with parameters that treat each unit independently of the others."""

Role = Literal["into", "out", "heads", "between"]


def candidates(network: nn.Module, inputs: torch.Tensor, ranks: int) -> dict[str, Shares]:
    """The unit groups that ranks may divide, by name, each with the shares if only this group is divided.

    `inputs` are (example, *). Raises `ModelError` if there is none. Whether the network still computes the same
    function is not tried here.
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
    """The shares if one group is divided; None if it is too small, or if its layers cannot be divided."""
    size = units.groups[group].size
    if units.groups[group].parents or size < ranks:
        return None
    pieces = [piece for piece in units.pieces if group in piece.groups]
    axes: dict[str, set[int]] = {}
    for piece in pieces:
        axes.setdefault(piece.tensor, set()).add(piece.axes[piece.groups.index(group)])
    cuts: dict[str, Cut] = {}
    roles: dict[str, Role] = {}
    for tensor, (axis, *more) in axes.items():
        mine = [piece for piece in pieces if piece.tensor == tensor]
        cuts[tensor], whole = _cut(mine, group, axis, units.tensors[tensor], size, ranks)
        place = _place(network, tensor, axis, size)
        if more or place is None or (place[1] != "between" and not whole):
            return None
        roles.setdefault(*place)
    into, out, heads = (tuple(name for name in roles if roles[name] == role) for role in ("into", "out", "heads"))
    if not heads and not (into and out):
        return None
    counts = tuple(_counts(network, into, size, units, group, ranks))
    return Shares(ranks, layout, cuts, into, out, heads, counts=counts, units=(group,))


def _place(network: nn.Module, tensor: str, axis: int, size: int) -> tuple[str, Role] | None:
    """The layer to which an axis of `size` units of a tensor belongs, and its role; None if it cannot be divided.

    The role is ``into`` for layers that make the units, ``out`` for layers that take them, ``heads`` for attention
    that does both, and ``between`` for what treats each unit alone.
    """
    owner, _, name = tensor.rpartition(".")
    module = network.get_submodule(owner)
    if isinstance(module, PER_UNIT):
        return tensor, "between"
    if type(module) is nn.Linear and name in ("weight", "bias"):
        return (owner, "out" if axis else "into") if name == "weight" else (tensor, "between")
    attention = attention_of(network, tensor, axis, size)
    return None if attention is None else (attention, "heads")


def _cut(
    pieces: Sequence[Piece], group: str, axis: int, shape: tuple[int, ...], size: int, ranks: int
) -> tuple[Cut, bool]:
    """How an axis of a tensor is cut so that ranks get equal shares of a group's units.

    Returns the cut, and whether the whole axis belongs to the group. Indices of other groups go to all ranks.
    """
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
    spans = tuple(_spans((unit < 0) | ((unit >= first) & (unit < end))) for first, end in even(size, ranks))
    return Cut(axis, spans), bool((unit >= 0).all())


def _spans(mask: np.ndarray) -> Spans:
    """The spans of true values in a mask, bool (index,), over the indices of an axis."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return tuple((int(first), int(end)) for first, end in zip(edges[::2], edges[1::2], strict=True))


def _counts(
    network: nn.Module, into: Iterable[str], size: int, units: UnitGroups, group: str, ranks: int
) -> Iterator[Count]:
    """Yield the integer attributes that count heads, or the units of all heads, and differ on each rank.

    They are those of the modules around the layers `into`.
    """
    inner = [g.size for g in units.groups.values() if g.parents == (group,)]
    if not inner:
        return
    local = [end - first for first, end in even(size, ranks)]
    for owner in dict.fromkeys(name.rpartition(".")[0] for name in into):
        for attribute, value in vars(network.get_submodule(owner)).items():
            if type(value) is int and value in {size, *(size * each for each in inner)}:
                yield Count(owner, attribute, tuple(value // size * each for each in local))


LARGE = 16
"""A layer outside all groups is sliced if it has more than 1 / LARGE of a network's elements."""


def sliced(network: nn.Module, shares: Shares) -> Shares:
    """Add slices of the inputs of large linear layers, which every rank would have as a whole otherwise.

    Layers of which ranks have different examples are left out, and so are weights that several layers share.
    """
    specs = {spec.name: spec for spec in (*shares.layout.params, *shares.layout.frozen)}
    least = sum(spec.size for spec in specs.values()) / LARGE
    tied = {first for _, first in shares.layout.aliases}
    cuts: dict[str, Cut] = {}
    for name, module in network.named_modules():
        weight = f"{name}.weight".removeprefix(".")
        fits = type(module) is nn.Linear and weight in specs.keys() - shares.cuts - shares.before - tied
        if fits and specs[weight].size > least and specs[weight].shape[1] >= shares.ranks:
            cuts[weight] = Cut(1, tuple((span,) for span in even(specs[weight].shape[1], shares.ranks)))
    names = tuple(weight.rpartition(".")[0] for weight in cuts)
    return replace(shares, cuts={**shares.cuts, **cuts}, sliced=names) if cuts else shares


def best(fitting: Mapping[str, Shares]) -> Shares:
    """Divide the groups that cut the most elements. Of groups that meet in one tensor, only one can be divided."""
    return together([fitting[name] for name in _chosen(tuple(fitting), fitting)])


def named(fitting: Mapping[str, Shares], names: Sequence[str]) -> Shares:
    """Divide the groups of these names; raises `UsageError` if one cannot be divided, or not with the others."""
    for name in names:
        if name not in fitting:
            raise UsageError(
                f"units {name!r} cannot be shared by ranks; those of {', '.join(sorted(fitting))} can"
            )
    chosen = [fitting[name] for name in dict.fromkeys(names)]
    for number, shares in enumerate(chosen):
        if clash := [other.units[0] for other in chosen[:number] if shares.cuts.keys() & other.cuts.keys()]:
            raise UsageError(f"units {shares.units[0]!r} and {clash[0]!r} meet in one layer; share one of them")
    return together(chosen)


def together(parts: Sequence[Shares]) -> Shares:
    """The shares if several groups are divided at once, from the shares of each alone."""
    first = parts[0]
    return replace(
        first,
        cuts={name: cut for part in parts for name, cut in part.cuts.items()},
        column=tuple(name for part in parts for name in part.column),
        row=tuple(name for part in parts for name in part.row),
        heads=tuple(name for part in parts for name in part.heads),
        counts=tuple(count for part in parts for count in part.counts),
        units=tuple(name for part in parts for name in part.units),
    )


def largest(fitting: Mapping[str, Shares]) -> Shares:
    """The shares of the single group that cuts the most elements."""
    return max(fitting.values(), key=_elements)


def _elements(shares: Shares) -> int:
    """How many elements of parameters are in tensors that are cut."""
    return sum(spec.size for spec in shares.layout.params if spec.name in shares.cuts)


def _chosen(names: tuple[str, ...], fitting: Mapping[str, Shares]) -> tuple[str, ...]:
    """The names of the groups that together cut the most elements, and of which no two meet in one tensor."""
    sizes = {name: _elements(shares) for name, shares in fitting.items()}

    def elements(chosen: tuple[str, ...]) -> int:
        return sum(sizes[name] for name in chosen)

    @functools.cache
    def choose(left: tuple[str, ...]) -> tuple[str, ...]:
        if not left:
            return ()
        first, *rest = left
        clear = tuple(name for name in rest if not fitting[name].cuts.keys() & fitting[first].cuts.keys())
        with_first = (first, *choose(clear))
        return with_first if len(clear) == len(rest) else max(with_first, choose(tuple(rest)), key=elements)

    return choose(names)
