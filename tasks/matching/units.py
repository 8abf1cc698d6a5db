"""Which hidden units of a network are interchangeable, and what permuting them does to its tensors.

Any module that `torch.export` takes is traced; no specification is written by hand. The idea of permutation
symmetries as data follows Git Re-Basin (Ainsworth, Hayase and Srinivasa 2023, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from storage.errors import ModelError, ShapeMismatch
from tasks.matching.layouts import Atom, Layout, leaves
from tasks.matching.settling import Placed, ancestors, companions, placed, settle
from tasks.matching.tracing import Trace, trace

Permutation = Mapping[str, torch.Tensor]
"""For each group int64 (*sizes of its parents, size): new unit i is old unit ``permutation[..., i]``."""
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Group:
    """Interchangeable units. With `parents`, outermost first, every parent's index has an order of its own."""

    name: str
    size: int
    parents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A strided part of a contiguous tensor with one group, or None for pinned indices, a dimension.

    `axes` says on which axis of the tensor each dimension lies.
    """

    tensor: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    groups: tuple[str | None, ...]
    axes: tuple[int, ...]

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a contiguous tensor, sharing its memory."""
        return tensor.as_strided(self.shape, self.strides, self.offset)


@dataclass(frozen=True)
class UnitGroups:
    """A network's groups of interchangeable units, where they are, and what is pinned and why.

    `pinned` maps each tensor without a free axis to the reason; `unknown` maps operations without a rule to the
    place where they stand first; `taps` are the values in the graph that show units at work, with their layouts.
    """

    groups: Mapping[str, Group]
    pieces: tuple[Piece, ...]
    tensors: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]
    pinned: Mapping[str, str]
    unknown: Mapping[str, str]
    taps: tuple[Piece, ...] = ()

    @property
    def coverage(self) -> float:
        """The share of the tensors with at least one free axis."""
        counted = [name for name, shape in self.tensors.items() if math.prod(shape) > 1]
        return 1 - len(self.pinned) / len(counted) if counted else 0.0

    def members(self, group: str) -> list[tuple[str, int, int]]:
        """Where a group is: (tensor, axis, offset of the segment in the tensor's memory)."""
        return [
            (piece.tensor, axis, piece.offset)
            for piece in self.pieces
            for name, axis in zip(piece.groups, piece.axes, strict=True)
            if name == group
        ]

    def identity(self) -> dict[str, torch.Tensor]:
        """The permutation that changes nothing."""
        return {
            name: torch.arange(group.size).expand(*self._outer(group), group.size).contiguous()
            for name, group in self.groups.items()
        }

    def random(self, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """A permutation drawn at random."""
        found = {}
        for name, group in self.groups.items():
            rows = [torch.randperm(group.size, generator=generator) for _ in range(math.prod(self._outer(group)))]
            found[name] = torch.stack(rows).reshape(*self._outer(group), group.size)
        return found

    def permute(self, state: Tensors, permutation: Permutation) -> dict[str, torch.Tensor]:
        """The state with its units in another order, other tensors as they are; raises `ShapeMismatch`.

        The network's function stays the same.
        """
        self.check(state)
        found = dict(state)
        for piece in self.pieces:
            if any(group in permutation for group in piece.groups):
                if found[piece.tensor] is state[piece.tensor]:
                    found[piece.tensor] = state[piece.tensor].clone(memory_format=torch.contiguous_format)
                source = piece.view(state[piece.tensor].contiguous())
                piece.view(found[piece.tensor]).copy_(rearranged(source, piece.groups, self.groups, permutation))
        return found | {name: found[first] for name, first in self.aliases.items() if name in state}

    def invert(self, permutation: Permutation) -> dict[str, torch.Tensor]:
        """The permutation that brings the units back."""
        found: dict[str, torch.Tensor] = {}
        for name in self.ordered(permutation):
            outer = self.lookup(self.groups[name], found)
            found[name] = permutation[name][outer].argsort(-1)
        return found

    def compose(self, first: Permutation, then: Permutation) -> dict[str, torch.Tensor]:
        """The permutation that does the one and then the other."""
        found = {}
        for name in self.ordered(first):
            outer = self.lookup(self.groups[name], then)
            found[name] = first[name][outer].gather(-1, then[name])
        return found

    def ordered(self, names: Mapping[str, Any]) -> list[str]:
        """Groups by name, parents before those that depend on them."""
        return sorted(names, key=lambda name: len(self.groups[name].parents))

    def lookup(self, group: Group, permutation: Permutation) -> tuple[torch.Tensor, ...]:
        """The old indices of the group's parents at each of their new ones; with it a table is indexed."""
        return parent_indices(group.parents, self.groups, permutation)

    def check(self, state: Tensors) -> None:
        """Raise `ShapeMismatch` unless the state has the network's tensors."""
        for name, shape in self.tensors.items():
            if name not in state or tuple(state[name].shape) != shape:
                found = tuple(state[name].shape) if name in state else "missing"
                raise ShapeMismatch(f"tensor {name} is {found}, the network that was analysed has {shape}")

    def _outer(self, group: Group) -> tuple[int, ...]:
        return tuple(self.groups[parent].size for parent in group.parents)


def parent_indices(
    parents: tuple[str, ...], groups: Mapping[str, Group], permutation: Permutation
) -> tuple[torch.Tensor, ...]:
    """Index tensors, one a parent, that broadcast to the parents' sizes."""
    sizes = [groups[parent].size for parent in parents]
    found: tuple[torch.Tensor, ...] = ()
    for depth, parent in enumerate(parents):
        known = permutation.get(parent)
        table = torch.arange(sizes[depth]) if known is None else known
        if known is None:
            table = table.expand(*sizes[: depth + 1])
        found = (*found, table.reshape(*sizes[: depth + 1], *[1] * (len(sizes) - depth - 1)))
    return found


def rearranged(
    values: torch.Tensor,
    dims: tuple[str | None, ...],
    groups: Mapping[str, Group],
    permutation: Permutation,
) -> torch.Tensor:
    """A tensor whose dimensions carry groups, with their units in the permutation's order."""
    for dim, name in enumerate(dims):
        if name in permutation and not groups[name].parents:
            values = values.index_select(dim, permutation[name])
    for dim, name in enumerate(dims):
        if name in permutation and groups[name].parents:
            values = _gathered(values, dims, dim, groups[name].parents, permutation[name])
    return values


def _gathered(
    values: torch.Tensor, dims: tuple[str | None, ...], dim: int, parents: tuple[str, ...], table: torch.Tensor
) -> torch.Tensor:
    """Reorder a dimension by a table that depends on the (new) indices of others."""
    places = [*(dims.index(parent) for parent in parents), dim]
    shape = [1] * values.ndim
    for place in places:
        shape[place] = values.shape[place]
    order = sorted(range(len(places)), key=lambda i: places[i])
    index = table.permute(order).reshape(shape).expand(values.shape)
    return values.gather(dim, index)


def find_units(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> UnitGroups:
    """The groups of interchangeable units of a module, by example inputs; the module is left as it was.

    Raises `ModelError` where it cannot be exported. An operation without a rule pins what it touches.
    """
    traced = trace(model, inputs)
    settle(traced)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    together = companions(traced, plain=False)
    parts = {name: placed(layout, shapes[name]) for name, layout in traced.tensors.items()}
    free = {a for placements in parts.values() for p in placements for a in p.atoms if a.pinned is None}
    chains = ancestors(free, together, [p for placements in parts.values() for p in placements])
    names = _named(parts, free)
    aliases = _aliases(model, traced)
    if not shapes:
        raise ModelError(f"{type(model).__name__} has no parameters")
    return UnitGroups(
        groups={
            names[atom]: Group(names[atom], atom.size, tuple(names[one] for one in chains[atom])) for atom in names
        },
        pieces=tuple(
            piece
            for name, placements in parts.items()
            for piece in _pieces(name, placements, names)
            if any(piece.groups)
        ),
        tensors={name: shape for name, shape in shapes.items() if name not in aliases},
        aliases=aliases,
        pinned=_pinned(shapes, traced, aliases),
        unknown=dict(traced.unknown),
        taps=_taps(traced, names),
    )


def _named(parts: Mapping[str, list[Placed]], free: set[Atom]) -> dict[Atom, str]:
    """Names of groups: the first module whose tensor carries them, numbered where it carries several."""
    names: dict[Atom, str] = {}
    for tensor, placements in parts.items():
        for placement in placements:
            for atom in placement.atoms:
                if atom in free and atom not in names:
                    stem = tensor.rpartition(".")[0] or tensor
                    names[atom] = _numbered(stem, set(names.values()))
    return names


def _numbered(stem: str, taken: set[str]) -> str:
    number = 2
    name = stem
    while name in taken:
        name, number = f"{stem}:{number}", number + 1
    return name


def _pieces(tensor: str, placements: list[Placed], names: Mapping[Atom, str]) -> list[Piece]:
    return [
        Piece(
            tensor,
            p.offset,
            tuple(atom.size for atom in p.atoms),
            p.strides,
            tuple(names.get(atom) for atom in p.atoms),
            p.axes,
        )
        for p in placements
    ]


def _taps(traced: Trace, names: Mapping[Atom, str]) -> tuple[Piece, ...]:
    """The intermediate values that go into a sum, as pieces; those whose units are no parameter's are left out."""
    found: list[Piece] = []
    shapes = {
        node.name: tuple(node.meta["val"].shape)
        for node in traced.program.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    }
    for name in dict.fromkeys(traced.consumed):
        if name in shapes and name in traced.intermediate:
            pieces = _pieces(name, placed(traced.intermediate[name], shapes[name]), names)
            found += [piece for piece in pieces if any(piece.groups)]
    return tuple(found)


def _aliases(model: nn.Module, traced: Trace) -> dict[str, str]:
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    names = {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}
    return {name: kept for name, kept in names.items() if name != kept}


def _pinned(shapes: Mapping[str, tuple[int, ...]], traced: Trace, aliases: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, shape in shapes.items():
        if name in aliases or math.prod(shape) == 1:
            continue
        layout: Layout = traced.tensors.get(name, [])
        atoms = [atom for axis in layout for atom in leaves(axis) if atom.size > 1]
        if all(atom.pinned for atom in atoms):
            reasons = dict.fromkeys(str(atom.pinned) for atom in atoms)
            found[name] = ", ".join(reasons) or "not used"
    return found
