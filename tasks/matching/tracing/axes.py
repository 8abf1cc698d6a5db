"""The units along the axes of tensors, and how operations unify the units of two tensors.

The units along an axis are an atom: a set of indices of known size. ``cat`` makes an atom of several that follow
one another, ``view`` makes one of a row-major product. Two axes that an operation pairs are unified (union-find),
and an atom is cut or factored where the other side is. Atoms that are never pinned may be permuted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeGuard

Segment = list["Atom"]
"""A row-major product of atoms."""
Axes = list["Atom"]
"""The axes of a tensor: an atom for each dimension."""

UNSEEN = "may be in orders that are not looked for: "
"""How the reason begins for pinning units that could be in another order, which tracing does not find."""

OPERATION: ContextVar[str] = ContextVar("operation", default="")
"""The operation whose rule is being applied, to name it in the reasons for pinning."""


class AxesMismatch(ValueError):
    """Raised if axes of different lengths are paired; the operation then counts as unknown."""


@dataclass(eq=False, repr=False, slots=True)
class Atom:
    """A set of indices. `pinned` is the reason why their order must stay, None while they may be permuted.

    `parts` are the products that it was cut into, or the one into which it was factored. `chosen` holds choices:
    for another atom beside it and each index of that atom, the atom that takes its place there. For example,
    packed queries and keys have different units at each index of the packing axis. `link` leads to the atom that
    it was unified with. Rows that were sorted by which units they are for have `runs` of these units. An atom that
    `clashes` with another grouping of the same units does not say which they are.
    """

    size: int
    pinned: str | None = None
    parts: list[Segment] | None = None
    chosen: dict[Atom, dict[int, Atom]] = field(default_factory=dict)
    link: Atom | None = None
    runs: Atom | None = None
    clashes: bool = False

    @property
    def root(self) -> Atom:
        """The atom that represents all atoms unified with this one."""
        atom = self
        while atom.link is not None:
            if atom.link.link is not None:
                atom.link = atom.link.link
            atom = atom.link
        return atom

    @property
    def factors(self) -> Segment:
        """The atoms whose product this is, without those of size 1."""
        root = self.root
        if root.parts is not None and len(root.parts) == 1:
            return [factor for atom in root.parts[0] for factor in atom.factors]
        return [root] if root.size != 1 else []

    @property
    def segments(self) -> list[Segment]:
        """The products that follow one another along this atom; atoms that were cut inside a product stay."""
        return expand([[self]])

    @property
    def whole(self) -> Atom | None:
        """The atom itself, or None if it was cut or factored."""
        (first, *more) = self.segments
        return first[0] if len(first) == 1 and not more else None

    def pin(self, why: str, clashes: bool = False) -> None:
        """Pin all units, for the reason `why`; earlier reasons stay."""
        root = self.root
        root.clashes = root.clashes or clashes
        for segment in root.parts or []:
            pin_all(segment, why, clashes)
        if root.parts is None and root.pinned is None:
            root.pinned = why

    def part(self, size: int) -> Atom:
        """Return a new atom for a part of this one, of this size."""
        return Atom(size, self.pinned, clashes=self.clashes)

    def factored(self, *sizes: int) -> list[Atom]:
        """Atoms of these sizes whose row-major product this is."""
        atoms = [Atom(size) for size in sizes]
        unify(self, product(*atoms))
        return atoms

    def cut(self, sizes: Sequence[int]) -> list[Atom]:
        """Atoms of these sizes that follow one another along this one."""
        atoms = [Atom(size) for size in sizes]
        unify(self, concatenation(*atoms))
        return atoms

    def at(self, beside: Atom, index: int) -> Atom:
        """Return the units at this index of the atom `beside`, where they may be different ones."""

        def chosen(atom: Atom) -> Atom:
            if atom.pinned is not None or atom.parts is not None or atom.runs is not None:
                return atom
            return atom.chosen.setdefault(beside, {}).setdefault(index, Atom(atom.size))

        return concatenation(*(product(*map(chosen, segment)) for segment in self.segments))

    def walk(self, seen: set[Atom] | None = None) -> Iterator[Atom]:
        """Yield all atoms of this one, each once, including their parts and their choices."""
        seen = set() if seen is None else seen
        root = self.root
        if root not in seen:
            seen.add(root)
            yield root
            choices = [list(choice.values()) for choice in root.chosen.values()]
            for atom in (atom for atoms in (*(root.parts or []), *choices) for atom in atoms):
                yield from atom.walk(seen)


class UnitNumbers(list["Atom"]):
    """The axes of integers that say something of the units `of` other axes.

    ``units``: each is the index of one; ``order``: all indices, each once; ``places``: all, from 0 on; ``counts``:
    how often each unit is among sorted rows, ``ends``: the row at which its run ends; these are of units and rows.
    """

    def __init__(self, axes: Axes, what: str, *of: Atom) -> None:
        super().__init__(axes)
        self.what, self.of = what, of


def new_axes(shape: Sequence[int], pinned: str | None = None) -> Axes:
    """Return a new axis for each dimension."""
    return [Atom(size, pinned) for size in shape]


def is_axes(value: object) -> TypeGuard[Axes]:
    """Tell whether an operation's argument is the axes of a tensor; other lists are given as tuples."""
    return isinstance(value, list)


def pin_all(axes: Axes, why: str, clashes: bool = False) -> None:
    """Pin all units of several axes, for the reason `why`."""
    for axis in axes:
        axis.pin(why, clashes)


def product(*atoms: Atom) -> Atom:
    """Return the row-major product of atoms."""
    factors = [factor for atom in atoms for factor in atom.factors]
    return factors[0] if len(factors) == 1 else Atom(_size(factors), parts=[factors])


def concatenation(*atoms: Atom) -> Atom:
    """Atoms that follow one another along an axis."""
    segments = [segment for atom in atoms if atom.size for segment in atom.segments]
    if len(segments) < 2:
        return product(*segments[0]) if segments else Atom(0)
    return Atom(sum(map(_size, segments)), parts=segments)


def expand(segments: Sequence[Segment]) -> list[Segment]:
    """Segments with the parts of factored atoms, and of atoms that were cut and stand alone."""
    expanded: list[Segment] = []
    for segment in segments:
        factors = [factor for atom in segment for factor in atom.factors]
        parts = factors[0].parts if len(factors) == 1 else None
        expanded += [factors] if parts is None else expand(parts)
    return expanded


def _size(segment: Segment) -> int:
    return math.prod(atom.size for atom in segment)


def unify(left: Atom, right: Atom) -> None:
    """Make two axes carry the same units. Raises `AxesMismatch` if they have different lengths.

    If their groupings of units do not fit one another, both are pinned.
    """
    if left.size != right.size:
        raise AxesMismatch(f"an operation pairs axes of {left.size} and {right.size} units")
    mine, others = left.segments, right.segments
    while mine and others:
        small, large = sorted((mine, others), key=lambda segments: _size(segments[0]))
        if _size(small[0]) == _size(large[0]):
            _unify_products(mine.pop(0), others.pop(0))
        elif not _cut_first(large, _size(small[0])):
            _clash([atom for segment in (*mine, *others) for atom in segment], "cuts across a product of units")
            return
        mine, others = expand(mine), expand(others)


def _cut_first(segments: list[Segment], first: int) -> bool:
    """Cut the first segment after so many indices; False if its leading atom has no boundary there."""
    (atom, *rest), block = segments[0], _size(segments[0][1:])
    if atom.parts is not None or first % block:
        return False
    count = first // block
    atom.parts = [[atom.part(count)], [atom.part(atom.size - count)]]
    segments[:1] = [[*part, *rest] for part in atom.parts]
    return True


def _clash(atoms: Segment, what: str) -> None:
    pin_all(atoms, f"operation {OPERATION.get()} {what}", clashes=True)


def _unify_products(left: Segment, right: Segment) -> None:
    """Make two products of atoms carry the same units; factors atoms where the sizes differ."""
    while left and right:
        a, b = left.pop(), right.pop()
        if a.size == b.size:
            union(a, b)
        else:
            small, large = (a, b) if a.size < b.size else (b, a)
            if large.parts is not None or large.size % small.size:
                _clash([*left, *right, a, b], f"groups units by {small.size} and by {large.size}")
                return
            large.parts = [[large.part(large.size // small.size), large.part(small.size)]]
            left.append(a)
            right.append(b)
        left, right = ([factor for atom in side for factor in atom.factors] for side in (left, right))


def union(a: Atom, b: Atom) -> None:
    """Unify two atoms of the same size, with their parts, pins and choices."""
    if a.root.parts is not None and b.root.parts is not None and a.root is not b.root:
        unify(a, b)
    a, b = a.root, b.root
    if a is b:
        return
    root, other = (a, b) if a.parts is not None or b.parts is None else (b, a)
    why = root.pinned or other.pinned
    other.link = root
    if root.runs is not None and other.runs is not None:
        root.pin("rows that were sorted twice meet")
    root.runs = root.runs or other.runs
    if why is not None:
        root.pin(why, root.clashes or other.clashes)
    for beside, atoms in other.chosen.items():
        for index, atom in atoms.items():
            keep_choice(root, beside, index, atom)


def keep_choice(atom: Atom, beside: Atom, index: int, choice: Atom) -> None:
    """Record that `choice` takes the atom's place at this index of the atom `beside`."""
    # Recording the choice before may have unified the atom with another, hence `root`.
    known = atom.root.chosen.setdefault(beside.root, {})
    if index in known:
        union(known[index], choice)
    else:
        known[index] = choice


def broadcast(*tensors: Axes) -> Axes:
    """Return the axes of an elementwise operation on tensors, paired from the right.

    Axes of length 1 are stretched.
    """
    stretched: Axes = []
    for position in range(1, max(map(len, tensors)) + 1):
        paired = [axes[-position] for axes in tensors if len(axes) >= position]
        long = [axis for axis in paired if axis.size != 1]
        for axis in long[1:]:
            unify(long[0], axis)
        stretched.append((long or paired)[0])
    return stretched[::-1]
