"""Finds the interchangeable hidden units of any module that `torch.export` can trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, count

from torch import nn

from roundweave.storage.errors import ModelError
from roundweave.tasks.matching.groups import Piece, Span, UnitGroup, UnitGroups
from roundweave.tasks.matching.tracing.axes import UNSEEN, Atom, pin_all
from roundweave.tasks.matching.tracing.exporting import Inputs, first_names
from roundweave.tasks.matching.tracing.settling import Block, ancestors, placed, settle
from roundweave.tasks.matching.tracing.trace import Trace, trace
from roundweave.tasks.matching.unofficial import tensors_in


def find_units(model: nn.Module, inputs: Inputs, alike: Callable[[str], bool] = lambda name: True) -> UnitGroups:
    """Find a module's unit groups with example inputs (examples, …); the module itself is not changed.

    An operation without a rule pins all units that it touches, and a tensor that the call does not reach those
    that it could read, unless that is `alike` in all networks, so that no order matters to it. Raises `ModelError`
    if the module cannot be exported.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if not shapes:
        raise ModelError(f"{type(model).__name__} has no parameters")
    traced = trace(model, inputs)
    _pin_readable(traced, alike)
    together = settle(traced)
    blocks = {name: placed(axes, shapes[name]) for name, axes in traced.tensors.items()}
    every = [block for parts in blocks.values() for block in parts]
    _pin_unused(traced, every)
    free = [atom for atom in dict.fromkeys(a for block in every for a in block.atoms) if atom.pinned is None]
    chains = ancestors(free, together, every)
    names = _names(blocks, free)
    groups = [UnitGroup(name, atom.size, tuple(names[a] for a in chains[atom])) for atom, name in names.items()]
    aliases = {name: first for name, first in first_names(model).items() if name != first}
    return UnitGroups(
        groups={group.name: group for group in groups},
        pieces=tuple(piece for name, parts in blocks.items() for piece in _pieces(name, parts, names)),
        tensors={name: shape for name, shape in shapes.items() if name not in aliases},
        aliases=aliases,
        pinned=_pinned(shapes, traced, aliases),
        unknown=dict(traced.unknown),
        spans=tuple(_spans(blocks, names)),
        taps=_taps(traced, names),
        inputs=tuple(tuple(tensor.shape) for tensor in tensors_in(inputs)),
        statistics=frozenset(name for name, _ in model.named_buffers() if name in shapes),
    )


def _pin_readable(traced: Trace, alike: Callable[[str], bool]) -> None:
    """Pin the units that a tensor which no call reaches could read: no more than fit along one of its axes."""
    used = traced.used
    for name, longest in traced.unreached.items():
        readable = [atom for atom in used if atom.pinned is None and 1 < atom.size <= longest]
        if readable and not alike(name):
            pin_all(readable, f"{UNSEEN}{name} may read them, which the example inputs do not reach")


def _pin_unused(traced: Trace, every: Iterable[Block]) -> None:
    """Pin units that no operation reads, such as positions beyond the length of the example inputs.

    Any order of them would keep the outputs for these inputs, but not for longer ones.
    """
    places, used = Counter(atom for block in every for atom in block.atoms), traced.used
    for atom, number in places.items():
        if number == 1 and atom not in used:
            atom.pin("not used")


def _names(blocks: Mapping[str, list[Block]], free: Collection[Atom]) -> dict[Atom, str]:
    """Group names: each is the first module whose tensor has the units, with a number if there are several."""
    names: dict[Atom, str] = {}
    for tensor, parts in blocks.items():
        stem = tensor.rpartition(".")[0] or tensor
        for atom in (atom for block in parts for atom in block.atoms):
            if atom in free and atom not in names:
                candidates = chain([stem], (f"{stem}:{number}" for number in count(2)))
                names[atom] = next(name for name in candidates if name not in names.values())
    return names


def _pieces(tensor: str, blocks: Iterable[Block], names: Mapping[Atom, str]) -> list[Piece]:
    """Return the blocks of a tensor that have interchangeable units, as pieces."""
    pieces = []
    for block in blocks:
        groups = tuple(names.get(atom) for atom in block.atoms)
        if any(groups):
            shape = tuple(atom.size for atom in block.atoms)
            strides, axes = zip(*((stride, axis) for _, stride, axis in block.places), strict=True)
            pieces.append(Piece(tensor, block.offset, shape, strides, groups, axes))
    return pieces


def _spans(blocks: Mapping[str, list[Block]], names: Mapping[Atom, str]) -> Iterator[Span]:
    """Yield the units of all axes; units that occur in several tensors are counted once."""
    axes = {
        tuple(atom for atom, _, its in block.places if its == axis): None
        for parts in blocks.values()
        for block in parts
        for _, _, axis in block.places
    }
    for atoms in axes:
        groups = tuple(names[atom] for atom in atoms if atom in names)
        why = next((atom.pinned for atom in atoms if atom.pinned), "")
        yield Span(math.prod(atom.size for atom in atoms), groups, why)


def _taps(traced: Trace, names: Mapping[Atom, str]) -> tuple[Piece, ...]:
    """Return the intermediate values that go into a sum, as pieces; only those with units of some parameter.

    Sorted rows are left out, as two networks sort them differently, and what does not depend on the inputs.
    """
    graph, signature = traced.program.graph, traced.program.graph_signature
    shown = {node for node in graph.nodes if node.name in signature.user_inputs}
    for node in graph.nodes:
        if not shown.isdisjoint(node.all_input_nodes):
            shown.add(node)
    return tuple(
        piece
        for node, axes in traced.summed.items()
        if node in shown and not any(axis.root.runs for axis in axes)
        for piece in _pieces(node.name, placed(axes, node.meta["val"].shape), names)
    )


def _pinned(shapes: Mapping[str, tuple[int, ...]], traced: Trace, aliases: Mapping[str, str]) -> dict[str, str]:
    pinned = {}
    for name, shape in shapes.items():
        if name in aliases or math.prod(shape) == 1:
            continue
        atoms = [atom for axis in traced.tensors.get(name, []) for atom in axis.walk()]
        reasons = [atom.pinned for atom in atoms if atom.size > 1 and atom.parts is None]
        found = list(dict.fromkeys(filter(None, reasons)))
        if all(reasons) or any(reason.startswith(UNSEEN) for reason in found):
            pinned[name] = ", ".join(found) or "not used"
    return pinned
