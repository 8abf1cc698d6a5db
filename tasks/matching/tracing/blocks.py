"""Splits tensors into blocks that are plain products of atoms, following the atoms' choices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from roundweave.tasks.matching.tracing.axes import Atom, Axes


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
    """The blocks that following all choices gives."""
    return [stage for block in blocks for stage in stages(block) if not _follow(stage)]


def products(axes: Axes, steps: Sequence[int] | None = None) -> list[Block]:
    """The blocks of a tensor without following choices; `steps` are the strides of its axes."""
    places = enumerate(zip(axes, steps or [1] * len(axes), strict=True))
    return _combined([_blocks_of(atom, place, step) for place, (atom, step) in places])


def stages(block: Block) -> Iterator[Block]:
    """A block and all blocks that following choices gives, including the ones on the way."""
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
    """The blocks of the axis at `place`, with stride `step`."""
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
    """All products of blocks, one from each list."""
    return [
        Block(
            tuple(place for block in combination for place in block.places),
            offset + sum(block.offset for block in combination),
            fixed,
        )
        for combination in product(*choices)
    ]
