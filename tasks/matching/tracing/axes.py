"""Which units stand along the axes of a tensor, and how operations make those of two tensors the same.

An axis is a direct sum of segments, a segment is a row-major product of atoms, and an atom is a set of indices of
known size: ``cat`` makes sums, ``view`` makes products. Two axes that an operation pairs are unified atom by atom
(union-find), and an atom is cut or factored as soon as the other side is. What is never pinned may be permuted.
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
"""The axes of a tensor, one a dimension."""


OPERATION: ContextVar[str] = ContextVar("operation", default="")
"""The operation whose rule is applied, for the reasons of what it pins."""


class AxesMismatch(ValueError):
    """Two axes of different lengths are paired; the operation that asked for it counts as unknown."""


@dataclass(eq=False, repr=False, slots=True)
class Atom:
    """A set of indices; `pinned` says why it must keep its order, None that nothing has been found yet.

    `parts` is what it was cut or factored into. `chosen` holds, for an atom that stands beside it and each index
    of that atom, the atom which takes its place there: the values of packed queries and keys are different units.
    """

    size: int
    pinned: str | None = None
    parts: Axis | None = None
    chosen: dict[Atom, dict[int, Atom]] = field(default_factory=dict)
    link: Atom | None = None


def find(atom: Atom) -> Atom:
    """The atom that stands for all that were unified with this one."""
    while atom.link is not None:
        if atom.link.link is not None:
            atom.link = atom.link.link
        atom = atom.link
    return atom


def new_axis(size: int, pinned: str | None = None) -> Axis:
    """An axis of one new atom."""
    return [[Atom(size, pinned)]]


def new_axes(shape: Sequence[int], pinned: str | None = None) -> Axes:
    """A new axis for each dimension."""
    return [new_axis(size, pinned) for size in shape]


def is_axes(value: object) -> TypeGuard[Axes]:
    """Whether a value in the place of an operation's argument stands for a tensor."""
    return isinstance(value, list) and all(isinstance(axis, list) for axis in value)


def length(axis: Axis) -> int:
    """How many indices an axis has."""
    return sum(math.prod(atom.size for atom in segment) for segment in axis)


def factors(segment: Segment) -> Segment:
    """A segment with factored atoms replaced by their factors; atoms of size one are left out."""
    atoms = []
    for atom in map(find, segment):
        if atom.parts is not None and len(atom.parts) == 1:
            atoms += factors(atom.parts[0])
        elif atom.size != 1:
            atoms.append(atom)
    return atoms


def expand(axis: Axis) -> Axis:
    """An axis with atoms replaced by what they were cut and factored into; atoms cut within a product stay."""
    segments: Axis = []
    for segment in map(factors, axis):
        if len(segment) == 1 and segment[0].parts is not None:
            segments += expand(segment[0].parts)
        else:
            segments.append(segment)
    return segments


def as_factors(axis: Axis) -> Segment:
    """The axis as one segment; a sum becomes a single atom that is cut into it."""
    axis = expand(axis)
    return axis[0] if len(axis) == 1 else [as_atom(axis)]


def as_atom(axis: Axis) -> Atom:
    """The axis as one atom: its own, or a new one that is cut and factored into it."""
    return lone_atom(axis) or Atom(length(axis), parts=expand(axis))


def lone_atom(axis: Axis) -> Atom | None:
    """The atom that makes up the whole axis, None where there are several."""
    axis = expand(axis)
    return axis[0][0] if len(axis) == 1 and len(axis[0]) == 1 else None


def pin(axis: Axis, why: str) -> None:
    """Keep the order of all units on the axis."""
    for segment in axis:
        for atom in map(find, segment):
            if atom.parts is not None:
                pin(atom.parts, why)
            elif atom.pinned is None:
                atom.pinned = why


def pin_all(axes: Axes, why: str) -> None:
    """Keep the order of all units of a tensor."""
    for axis in axes:
        pin(axis, why)


def factor(axis: Axis, *sizes: int) -> list[Axis]:
    """The axis as a row-major product of axes of these sizes."""
    atoms = [Atom(size) for size in sizes]
    unify(axis, [atoms])
    return [[[atom]] for atom in atoms]


def walk(axis: Axis, seen: set[Atom] | None = None) -> Iterator[Atom]:
    """All atoms of an axis, each once: what they were cut and factored into, and those in choices, included."""
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
    """The atoms of an axis that are neither cut nor factored, those in choices included."""
    return (atom for atom in walk(axis) if atom.parts is None)


def cut(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """The axis as a concatenation of axes of these sizes."""
    atoms = [Atom(size) for size in sizes]
    unify(axis, [[atom] for atom in atoms])
    return [[[atom]] for atom in atoms]


def unify(left: Axis, right: Axis) -> None:
    """Make two axes carry the same units; raises `AxesMismatch` where they have different lengths.

    Where one groups its units in a way that does not fit the other, both keep their order.
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
    """Cut the first segment after so many indices, if its leading atom has a boundary there."""
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
    """Make two products of atoms carry the same units; both lists are used up."""
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
    """Make two atoms of one size the same."""
    a, b = find(a), find(b)
    if a is b:
        return
    if a.parts is not None and b.parts is not None:
        unify(a.parts, b.parts)
        a, b = find(a), find(b)
        if a is b:
            return
    kept, gone = (a, b) if a.parts is not None or b.parts is None else (b, a)
    why = kept.pinned or gone.pinned
    gone.link = kept
    if why is not None:
        pin([[kept]], why)
    for beside, atoms in gone.chosen.items():
        for index, atom in atoms.items():
            keep_choice(kept, beside, index, atom)


def keep_choice(atom: Atom, beside: Atom, index: int, choice: Atom) -> None:
    """Have a choice take the atom's place where the one beside it has this index."""
    # Keeping the choice before may have made the atom the same as another.
    known = find(atom).chosen.setdefault(find(beside), {})
    if index in known:
        union(known[index], choice)
    else:
        known[index] = choice


def choose(axis: Axis, beside: Atom, index: int) -> Axis:
    """The units of an axis where the atom beside it has this index: units of their own."""
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
    """The axes of an elementwise operation: they are paired from the right, those of length one stretch."""
    stretched: Axes = []
    for position in range(1, max(map(len, tensors)) + 1):
        paired = [axes[-position] for axes in tensors if len(axes) >= position]
        long = [axis for axis in paired if length(axis) != 1]
        for axis in long[1:]:
            unify(long[0], axis)
        stretched.append((long or paired)[0])
    return stretched[::-1]
