"""Which hidden units of a network are interchangeable: any module that `torch.export` takes is traced.

No specification is written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from storage.errors import ModelError
from tasks.matching.groups import Group, Piece, UnitGroups
from tasks.matching.tracing.axes import Atom, Axes, leaves
from tasks.matching.tracing.blocks import Block, placed
from tasks.matching.tracing.exporting import first_names
from tasks.matching.tracing.settling import ancestors, companions, settle
from tasks.matching.tracing.trace import Trace, trace


def find_units(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> UnitGroups:
    """The groups of interchangeable units of a module, by example inputs; the module is left as it was.

    Raises `ModelError` where it cannot be exported. An operation without a rule pins what it touches.
    """
    traced = trace(model, inputs)
    settle(traced)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    together = companions(traced)
    parts = {name: placed(axes, shapes[name]) for name, axes in traced.tensors.items()}
    found = dict.fromkeys(a for placements in parts.values() for p in placements for a in p.atoms)
    free = [atom for atom in found if atom.pinned is None]
    chains = ancestors(free, together, [p for placements in parts.values() for p in placements])
    names = _named(parts, free)
    aliases = {name: first for name, first in first_names(model).items() if name != first}
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
        batch=len(inputs[0]) if inputs and inputs[0].ndim else 1,
        statistics=frozenset(name for name, _ in model.named_buffers() if name in shapes),
    )


def _named(parts: Mapping[str, list[Block]], free: list[Atom]) -> dict[Atom, str]:
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


def _pieces(tensor: str, placements: list[Block], names: Mapping[Atom, str]) -> list[Piece]:
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


def _pinned(shapes: Mapping[str, tuple[int, ...]], traced: Trace, aliases: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, shape in shapes.items():
        if name in aliases or math.prod(shape) == 1:
            continue
        axes: Axes = traced.tensors.get(name, [])
        atoms = [atom for axis in axes for atom in leaves(axis) if atom.size > 1]
        if all(atom.pinned for atom in atoms):
            reasons = dict.fromkeys(str(atom.pinned) for atom in atoms)
            found[name] = ", ".join(reasons) or "not used"
    return found
