"""Settles a trace: decides which choices are legal, and which units' order may depend on which other units.

A choice says that units are different ones at each index of another unit (see `Atom.chosen`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from roundweave.tasks.matching.tracing.axes import OPERATION, UNSEEN, Atom, Axes, keep_choice, union
from roundweave.tasks.matching.tracing.trace import Trace


@dataclass(frozen=True)
class Block:
    """A part of a tensor that is a plain product: its offset, and each atom with its stride and its axis.

    `fixed` are further atoms at one of whose indices the block lies.
    """

    places: tuple[tuple[Atom, int, int], ...] = ()
    offset: int = 0
    fixed: tuple[Atom, ...] = ()

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The atoms whose product this is."""
        return tuple(atom for atom, _, _ in self.places)


def placed(axes: Axes, shape: Sequence[int]) -> list[Block]:
    """The blocks of a contiguous tensor, with atoms that were cut or have choices followed to their parts."""
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return leaves(products(axes, steps))


def leaves(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks that following all choices gives."""
    return [stage for block in blocks for stage in stages(block) if not _follow(stage)]


def products(axes: Axes, steps: Sequence[int] | None = None) -> list[Block]:
    """Return the blocks of a tensor without following choices; `steps` are the strides of its axes."""
    places = enumerate(zip(axes, steps or [1] * len(axes), strict=True))
    return _combined([_blocks_of(atom, place, step) for place, (atom, step) in places])


def stages(block: Block) -> Iterator[Block]:
    """Yield a block and all blocks that following choices gives, including the ones on the way."""
    yield block
    for further in _follow(block):
        yield from stages(further)


def _follow(block: Block) -> list[Block]:
    """If atoms depend on the index of another atom in the block, the blocks at each of its indices; else none."""
    for position, beside in enumerate(block.atoms):
        if any(beside in atom.chosen for atom in block.atoms):
            return [one for index in range(beside.size) for one in _at_index(block, position, index)]
    return []


def _at_index(block: Block, position: int, index: int) -> list[Block]:
    beside, step, _ = block.places[position]
    choices = [
        _blocks_of(atom.chosen.get(beside, {}).get(index, atom), axis, stride)
        for i, (atom, stride, axis) in enumerate(block.places)
        if i != position
    ]
    return _combined(choices, block.offset + index * step, (*block.fixed, beside))


def _blocks_of(atom: Atom, place: int, step: int) -> list[Block]:
    """Return the blocks of the axis at `place`, with stride `step`."""
    atom = atom.root
    if atom.parts is None or atom.size < 2:
        own = Block(((atom, step, place),)) if atom.size > 1 else Block()
        return [own] if atom.size else []
    blocks: list[Block] = []
    offset = 0
    for segment in atom.parts:
        inner = [math.prod(each.size for each in segment[i:]) for i in range(len(segment) + 1)]
        strides = [step * size for size in inner[1:]]
        choices = [_blocks_of(each, place, stride) for each, stride in zip(segment, strides, strict=True)]
        blocks += _combined(choices, offset)
        offset += inner[0] * step
    return blocks


def _combined(choices: list[list[Block]], offset: int = 0, fixed: tuple[Atom, ...] = ()) -> list[Block]:
    """Return all products of blocks, one from each list."""
    return [
        Block(
            tuple(place for block in combination for place in block.places),
            offset + sum(block.offset for block in combination),
            fixed,
        )
        for combination in product(*choices)
    ]


Companions = dict[Atom, set[Atom]]


def settle(trace: Trace) -> Companions:
    """Decide which choices there are, and return the companions.

    A unit may only depend on another that stands beside it in every tensor and sum, and does if that is pinned.
    """
    OPERATION.set("that stacks or selects")
    while True:
        atoms = _atoms(trace.every)
        _check_runs(trace, atoms)
        heads = [atom for atom in atoms if atom.chosen]
        if sum(_tidy(head) for head in heads):
            continue
        together = companions(trace)
        illegal = [head for head in heads if not set(head.chosen) <= together.get(head, set())]
        for head in illegal:
            _give_up(head, next(iter(head.chosen)))
        if not illegal and not _divide(trace, together):
            return together


def _atoms(tensors: Iterable[Axes]) -> list[Atom]:
    """Return all atoms of tensors, in an order that is the same in every process."""
    seen: set[Atom] = set()
    return [atom for axes in tensors for axis in axes for atom in axis.walk(seen)]


def _check_runs(trace: Trace, atoms: Iterable[Atom]) -> None:
    """Pin units by which rows were sorted if something depends on the order of the sorted rows."""
    fixed = set(_atoms(trace.tensors.values()))
    for atom in atoms:
        if atom.runs is not None and (atom.pinned or atom.parts is not None or atom in fixed):
            for axis in (atom, atom.runs):
                axis.pin(UNSEEN + "something depends on the order of rows that are sorted by them")
            atom.runs = None
            # What was looked up by such rows is no longer told apart by their units.
            for _, rest, by in trace.looked_up:
                if atom in {one.root for one in (*by, *getattr(by, "of", ()))}:
                    trace.sums.append((rest, []))


def _divide(trace: Trace, together: Companions) -> bool:
    """Give units that stand beside a pinned one everywhere an order at each of its indices; whether there are any.

    Those that have only in tensors, from which parts are looked up, may have such orders and are pinned.
    """
    blocks = [leaf for axes in trace.tensors.values() for leaf in leaves(products(axes))]
    beside: dict[Atom, dict[Atom, None]] = {}
    for block in blocks:
        for atom in block.atoms:
            others = dict.fromkeys(
                other for other in block.atoms if block.atoms.count(other) == 1 and other != atom
            )
            beside[atom] = {o: None for o in beside.get(atom, others) if o in others}
    looked_up = {
        (rest, units)
        for along, axes, _ in trace.looked_up
        for one in leaves(products(axes))
        if len(one.atoms) > 1
        for rest in one.atoms
        for units in along.factors
    }
    changed = False
    for atom, others in beside.items():
        if atom.pinned is not None or atom.chosen:
            continue
        near = together.get(atom, set())
        fixed = next((one for one in others if one.pinned is not None and one in near), None)
        if fixed is not None:
            atom.chosen[fixed] = {index: Atom(atom.size) for index in range(fixed.size)}
        elif any((atom, one) in looked_up and one not in near for one in others):
            atom.pin(UNSEEN + "each of the parts that are looked up may have its own")
        else:
            continue
        changed = True
    return changed


def _tidy(head: Atom) -> bool:
    """Update an atom's choices after unifications, and give up a senseless one.

    Returns whether anything changed.
    """
    if head.root is not head:
        return False
    for beside in head.chosen:
        if beside.root is not beside:
            for index, atom in head.chosen.pop(beside).items():
                keep_choice(head, beside, index, atom)
            return True
    for number, (beside, choices) in enumerate(head.chosen.items()):
        reached = {atom for choice in choices.values() for atom in choice.walk()}
        changed = number > 0 or head.parts is not None or head.pinned is not None or beside.parts is not None
        if changed or head in reached or beside in reached:
            _give_up(head, beside)
            return True
    return False


def _give_up(head: Atom, beside: Atom) -> None:
    """Undo a choice: unify its atoms with the head, so that the units no longer depend on an index."""
    for atom in head.chosen.pop(beside).values():
        union(head, atom)


def companions(trace: Trace) -> Companions:
    """For each atom, those that stand beside it exactly once in every tensor and every sum in which it occurs."""
    together: Companions = {}
    for members, around in [*((axes, None) for axes in trace.every), *trace.sums]:
        for block in products([*members, *(around or [])]):
            for stage in stages(block):
                present = Counter((*stage.atoms, *stage.fixed))
                if around is None:  # a row that was sorted stands for its unit
                    present.update(f for atom in stage.atoms if atom.runs is not None for f in atom.runs.factors)
                beside = {atom for atom, count in present.items() if count == 1 and not atom.clashes}
                for atom, _, axis in stage.places:
                    if axis < len(members):
                        together[atom] = together[atom] & beside if atom in together else beside
    return {atom: others - {atom} for atom, others in together.items()}


def ancestors(free: Iterable[Atom], together: Companions, parts: Iterable[Block]) -> dict[Atom, tuple[Atom, ...]]:
    """For each atom, the chain of others on whose index its order may depend, the outermost first.

    For example, each attention head may have its own order of dimensions, since the head stands beside them in
    every tensor.
    """
    order = {atom: number for number, atom in enumerate(free)}
    depends: dict[Atom, set[Atom]] = {}
    for atom in order:
        beside = together.get(atom, set()) & order.keys()
        depends[atom] = {other for other in beside if atom not in together.get(other, set())}
    for part in parts:
        for atom in set(part.atoms) & order.keys():
            depends[atom] &= {other for other in part.atoms if part.atoms.count(other) == 1}
    return {atom: _chain(atom, depends, order) for atom in order}


def _chain(atom: Atom, beside: Mapping[Atom, set[Atom]], order: Mapping[Atom, int]) -> tuple[Atom, ...]:
    chain: list[Atom] = []
    for other in sorted(beside[atom], key=lambda one: (len(beside[one]), one.size, order[one])):
        if set(chain) == beside[other] & beside[atom] and beside[other] <= beside[atom]:
            chain.append(other)
    return tuple(chain)
