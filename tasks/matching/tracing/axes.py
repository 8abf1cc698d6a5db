"""The units along the axes of tensors, and how operations unify the units of two tensors.

An axis is a sequence of segments, a segment is a row-major product of atoms, and an atom is a set of indices of
known size: ``cat`` makes sequences, ``view`` makes products. Two axes that an operation pairs are unified atom by
atom (union-find), and an atom is cut or factored where the other side is. Atoms that are never pinned may be
permuted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeGuard

Segment = list["Atom"]
Axis = list[Segment]
Axes = list[Axis]
"""The axes of a tensor, one for each dimension."""


OPERATION: ContextVar[str] = ContextVar("operation", default="")
"""The operation whose rule is being applied, to name it in the reasons for pinning."""


class AxesMismatch(ValueError):
    """Raised if axes of different lengths are paired; the operation then counts as unknown."""


@dataclass(eq=False, repr=False, slots=True)
class Atom:
    """A set of indices. `pinned` is the reason why their order must stay, None while they may be permuted.

    `parts` are the atoms that it was cut or factored into. `chosen` holds choices: for another atom beside it and
    each index of that atom, the atom that takes its place there. For example, packed queries and keys have
    different units at each index of the packing axis. `link` leads to the atom that it was unified with.
    """

    size: int
    pinned: str | None = None
    parts: Axis | None = None
    chosen: dict[Atom, dict[int, Atom]] = field(default_factory=dict)
    link: Atom | None = None


def find(atom: Atom) -> Atom:
    """The atom that represents all atoms unified with this one."""
    while atom.link is not None:
        if atom.link.link is not None:
            atom.link = atom.link.link
        atom = atom.link
    return atom


def new_axis(size: int, pinned: str | None = None) -> Axis:
    """A new axis of one atom."""
    return [[Atom(size, pinned)]]


def new_axes(shape: Sequence[int], pinned: str | None = None) -> Axes:
    """A new axis for each dimension."""
    return [new_axis(size, pinned) for size in shape]


def is_axes(value: object) -> TypeGuard[Axes]:
    """Whether an operation's argument is the axes of a tensor."""
    return isinstance(value, list) and all(isinstance(axis, list) for axis in value)


def length(axis: Axis) -> int:
    """The number of indices on an axis."""
    return sum(math.prod(atom.size for atom in segment) for segment in axis)


def factors(segment: Segment) -> Segment:
    """A segment with factored atoms replaced by their factors, and without atoms of size 1."""
    atoms = []
    for atom in map(find, segment):
        if atom.parts is not None and len(atom.parts) == 1:
            atoms += factors(atom.parts[0])
        elif atom.size != 1:
            atoms.append(atom)
    return atoms


def expand(axis: Axis) -> Axis:
    """An axis with atoms replaced by their parts; atoms that were cut inside a product stay."""
    segments: Axis = []
    for segment in map(factors, axis):
        if len(segment) == 1 and segment[0].parts is not None:
            segments += expand(segment[0].parts)
        else:
            segments.append(segment)
    return segments


def as_factors(axis: Axis) -> Segment:
    """The axis as one segment; several segments become a single atom that is cut into them."""
    axis = expand(axis)
    return axis[0] if len(axis) == 1 else [as_atom(axis)]


def as_atom(axis: Axis) -> Atom:
    """The axis as one atom: its only one, or a new one whose parts are the axis."""
    return lone_atom(axis) or Atom(length(axis), parts=expand(axis))


def lone_atom(axis: Axis) -> Atom | None:
    """The only atom of an axis, or None if there are several."""
    axis = expand(axis)
    return axis[0][0] if len(axis) == 1 and len(axis[0]) == 1 else None


def pin(axis: Axis, why: str) -> None:
    """Pin all units on an axis, for the reason `why`; earlier reasons stay."""
    for segment in axis:
        for atom in map(find, segment):
            if atom.parts is not None:
                pin(atom.parts, why)
            elif atom.pinned is None:
                atom.pinned = why


def pin_all(axes: Axes, why: str) -> None:
    """Pin all units of a tensor, for the reason `why`."""
    for axis in axes:
        pin(axis, why)


def factor(axis: Axis, *sizes: int) -> list[Axis]:
    """The axis as a row-major product of axes of these sizes."""
    atoms = [Atom(size) for size in sizes]
    unify(axis, [atoms])
    return [[[atom]] for atom in atoms]


def walk(axis: Axis, seen: set[Atom] | None = None) -> Iterator[Atom]:
    """All atoms of an axis, each once, including their parts and their choices."""
    seen = set() if seen is None else seen
    for segment in axis:
        for atom in map(find, segment):
            if atom not in seen:
                seen.add(atom)
                yield atom
                yield from walk(atom.parts or [], seen)
                for choice in atom.chosen.values():
                    yield from walk([[chosen] for chosen in choice.values()], seen)


def leaves(axis: Axis) -> Iterator[Atom]:
    """The atoms of an axis that are neither cut nor factored, including those in choices."""
    return (atom for atom in walk(axis) if atom.parts is None)


def cut(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """The axis as a concatenation of axes of these sizes."""
    atoms = [Atom(size) for size in sizes]
    unify(axis, [[atom] for atom in atoms])
    return [[[atom]] for atom in atoms]


def unify(left: Axis, right: Axis) -> None:
    """Make two axes carry the same units; raises `AxesMismatch` if they have different lengths.

    If their groupings of units do not fit one another, both are pinned.
    """
    if length(left) != length(right):
        raise AxesMismatch(f"axes of {length(left)} and {length(right)} units are paired")
    left, right = expand(left), expand(right)
    while left and right:
        small, large = sorted((left, right), key=lambda axis: length(axis[:1]))
        if length(small[:1]) < length(large[:1]):
            if not _cut_segment(large, length(small[:1])):
                _clash([*left, *right], "cuts across a product of units")
                return
        else:
            unify_products(left.pop(0), right.pop(0))
        left, right = expand(left), expand(right)


def _cut_segment(axis: Axis, first: int) -> bool:
    """Cut the first segment after so many indices; False if its leading atom has no boundary there."""
    (atom, *rest), block = axis[0], length([axis[0][1:]])
    if atom.parts is not None or first % block:
        return False
    count = first // block
    atom.parts = [[Atom(count, atom.pinned)], [Atom(atom.size - count, atom.pinned)]]
    axis[:1] = [[*part, *rest] for part in atom.parts]
    return True


def _clash(axis: Axis, what: str) -> None:
    pin(axis, f"operation {OPERATION.get()} {what}")


def unify_products(left: Segment, right: Segment) -> None:
    """Make two products of atoms carry the same units; factors atoms where the sizes differ."""
    left, right = factors(left), factors(right)
    while left and right:
        a, b = left.pop(), right.pop()
        if a.size == b.size:
            union(a, b)
        else:
            small, large = (a, b) if a.size < b.size else (b, a)
            if large.parts is not None or large.size % small.size:
                _clash([[*left, *right, a, b]], f"groups units by {small.size} and by {large.size}")
                return
            large.parts = [[Atom(large.size // small.size, large.pinned), Atom(small.size, large.pinned)]]
            left.append(a)
            right.append(b)
        left, right = factors(left), factors(right)


def union(a: Atom, b: Atom) -> None:
    """Unify two atoms of the same size, with their parts, pins and choices."""
    a, b = find(a), find(b)
    if a is b:
        return
    if a.parts is not None and b.parts is not None:
        unify(a.parts, b.parts)
        a, b = find(a), find(b)
        if a is b:
            return
    root, other = (a, b) if a.parts is not None or b.parts is None else (b, a)
    why = root.pinned or other.pinned
    other.link = root
    if why is not None:
        pin([[root]], why)
    for beside, atoms in other.chosen.items():
        for index, atom in atoms.items():
            keep_choice(root, beside, index, atom)


def keep_choice(atom: Atom, beside: Atom, index: int, choice: Atom) -> None:
    """Record that `choice` takes the atom's place at this index of the atom `beside`."""
    # Recording the choice before may have unified the atom with another, hence `find`.
    known = find(atom).chosen.setdefault(find(beside), {})
    if index in known:
        union(known[index], choice)
    else:
        known[index] = choice


def choose(axis: Axis, beside: Atom, index: int) -> Axis:
    """The axis at this index of the atom `beside`, where it has its own units."""
    chosen: Axis = []
    for segment in expand(axis):
        atoms = []
        for atom in segment:
            if atom.pinned is not None or atom.parts is not None:
                atoms.append(atom)
                continue
            known = atom.chosen.setdefault(beside, {})
            atoms.append(known.setdefault(index, Atom(atom.size)))
        chosen.append(atoms)
    return chosen


def broadcast(*tensors: Axes) -> Axes:
    """The axes of an elementwise operation on tensors, paired from the right; axes of length 1 are stretched."""
    stretched: Axes = []
    for position in range(1, max(map(len, tensors)) + 1):
        paired = [axes[-position] for axes in tensors if len(axes) >= position]
        long = [axis for axis in paired if length(axis) != 1]
        for axis in long[1:]:
            unify(long[0], axis)
        stretched.append((long or paired)[0])
    return stretched[::-1]
