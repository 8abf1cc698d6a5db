"""Settle a trace: which choices stand, which units depend on which others, where each group of units is found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from tasks.matching.layouts import Atom, Block, Layout, blocks, find, leaves, merge, plain_blocks
from tasks.matching.tracing import Trace

Companions = dict[Atom, set[Atom]]


def settle(trace: Trace) -> None:
    """Undo choices that are not legal: beside what they depend on, units must stand wherever they stand."""
    layouts = [*trace.tensors.values(), *trace.intermediate.values()]
    changed = True
    while changed:
        changed = False
        heads = {atom for layout in layouts for axis in layout for atom in leaves(axis) if atom.chosen}
        heads |= {atom for layout in layouts for axis in layout for atom in _cut_heads(axis)}
        together = companions(trace, plain=True)
        for head in heads:
            changed |= _settle_head(head, together)


def _cut_heads(axis: Iterable[Iterable[Atom]]) -> Iterable[Atom]:
    for segment in axis:
        for atom in map(find, segment):
            if atom.parts is not None:
                yield from _cut_heads(atom.parts)
                if atom.chosen:
                    yield atom


def _settle_head(head: Atom, together: Companions) -> bool:
    """Bring a unit's choices under their present names; give up those that are not legal."""
    for beside, choices in list(head.chosen.items()):
        current = find(beside)
        if current is not beside:
            del head.chosen[beside]
            for index, atom in choices.items():
                known = head.chosen.setdefault(current, {})
                merge(known.setdefault(index, atom), atom)
            return True
        legal = head.parts is None and head.pinned is None and beside in together.get(head, {beside})
        if not legal or beside.parts is not None or any(find(atom) is head for atom in choices.values()):
            del head.chosen[beside]
            for atom in choices.values():
                merge(head, atom)
            return True
    return False


def companions(trace: Trace, plain: bool) -> Companions:
    """For each unit, those that stand beside it wherever it stands and wherever it is summed over."""
    of = plain_blocks if plain else blocks
    found: Companions = {}

    def note(members: Iterable[Atom], beside: Iterable[Atom]) -> None:
        everybody = set(beside)
        for member in members:
            found[member] = found[member] & everybody if member in found else set(everybody)

    for layout in (*trace.tensors.values(), *trace.intermediate.values()):
        for atoms in _combinations(layout, of):
            note(atoms, atoms)
    for axes, batch in trace.contractions:
        for around in _combinations(batch, of):
            note(around, around)
            for atoms in _combinations(axes, of):
                note(atoms, (*atoms, *around))
    return {atom: others - {atom} for atom, others in found.items()}


def _combinations(layout: Layout, of: object) -> Iterable[tuple[Atom, ...]]:
    parts = [of(axis) for axis in layout]  # type: ignore[operator]
    for combination in product(*parts):
        yield tuple(atom for block in combination for atom in block.atoms)


@dataclass(frozen=True)
class Placed:
    """A part of a tensor that is a plain product of units: where it starts, its strides, its atoms."""

    atoms: tuple[Atom, ...]
    strides: tuple[int, ...]
    offset: int
    axes: tuple[int, ...]


def placed(layout: Layout, shape: tuple[int, ...]) -> list[Placed]:
    """A contiguous tensor as strided parts, one atom a dimension; `axes` says on which axis each lies."""
    steps = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        steps[axis] = steps[axis + 1] * shape[axis + 1]
    return [_placed(combination, steps) for combination in product(*(blocks(axis) for axis in layout))]


def _placed(combination: tuple[Block, ...], steps: list[int]) -> Placed:
    located = list(zip(combination, steps, range(len(steps)), strict=True))
    return Placed(
        tuple(atom for block, _, _ in located for atom in block.atoms),
        tuple(stride * step for block, step, _ in located for stride in block.strides),
        sum(block.offset * step for block, step, _ in located),
        tuple(axis for block, _, axis in located for _ in block.atoms),
    )


def ancestors(free: set[Atom], together: Companions, parts: Iterable[Placed]) -> Mapping[Atom, tuple[Atom, ...]]:
    """For each unit the chain of others on whose index its order may depend, the outermost first.

    The dimensions of an attention head may be permuted for each head alone, since wherever they stand the head
    stands beside them.
    """
    found: dict[Atom, set[Atom]] = {}
    for atom in free:
        beside = together.get(atom, set()) & free
        found[atom] = {other for other in beside if atom not in together.get(other, set())}
    for part in parts:
        for atom in set(part.atoms) & free:
            found[atom] &= {other for other in part.atoms if part.atoms.count(other) == 1}
    return {atom: _chain(atom, found) for atom in free}


def _chain(atom: Atom, beside: Mapping[Atom, set[Atom]]) -> tuple[Atom, ...]:
    chain: list[Atom] = []
    for other in sorted(beside[atom], key=lambda one: (len(beside[one]), one.size)):
        if set(chain) == beside[other] & beside[atom] and beside[other] <= beside[atom]:
            chain.append(other)
    return tuple(chain)
