"""Tensors as plain products of units: where each product lies, and where choices lead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tasks.matching.tracing.axes import Atom, Axes, Axis, find, length


@dataclass(frozen=True)
class Block:
    """A part of a tensor that is a plain product of atoms: where it starts, the stride and axis of each atom.

    `fixed` are atoms that would stand there too, had the block not been taken at one of their indices.
    """

    atoms: tuple[Atom, ...] = ()
    strides: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    offset: int = 0
    fixed: tuple[Atom, ...] = ()


def placed(axes: Axes, shape: Sequence[int]) -> list[Block]:
    """A contiguous tensor as plain products, atoms that were cut or chosen followed into each."""
    steps = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        steps[axis] = steps[axis + 1] * shape[axis + 1]
    return [stage for block in products(axes, steps) for stage in stages(block) if not _follow(stage)]


def products(axes: Axes, steps: Sequence[int] | None = None) -> list[Block]:
    """The same without following choices."""
    places = enumerate(zip(axes, steps or [1] * len(axes), strict=True))
    return _combined([_axis_blocks(axis, place, step) for place, (axis, step) in places])


def stages(block: Block) -> Iterator[Block]:
    """A block, and all that come from it by following choices, the last ones and those on the way."""
    yield block
    for further in _follow(block):
        yield from stages(further)


def _follow(block: Block) -> list[Block]:
    """Where atoms depend on the index of another in the block, one block for each such index."""
    for position, beside in enumerate(block.atoms):
        if any(beside in atom.chosen for atom in block.atoms):
            return [one for index in range(beside.size) for one in _at_index(block, position, index)]
    return []


def _at_index(block: Block, position: int, index: int) -> list[Block]:
    beside = block.atoms[position]
    choices = []
    for i, (atom, stride, axis) in enumerate(zip(block.atoms, block.strides, block.axes, strict=True)):
        if i != position:
            here = atom.chosen.get(beside, {}).get(index, atom)
            choices.append(_axis_blocks([[here]], axis, stride))
    offset = block.offset + index * block.strides[position]
    return _combined(choices, offset, (*block.fixed, beside))


def _axis_blocks(axis: Axis, place: int, step: int) -> list[Block]:
    """The plain products along the axis at a place, whose indices lie a step apart."""
    blocks: list[Block] = []
    offset = 0
    for segment in axis:
        size = stride = length([segment])
        choices: list[list[Block]] = []
        for atom in map(find, segment if size else []):
            stride //= atom.size
            if atom.parts is not None:
                choices.append(_axis_blocks(atom.parts, place, stride * step))
            elif atom.size != 1:
                choices.append([Block((atom,), (stride * step,), (place,))])
        blocks += _combined(choices, offset) if size else []
        offset += size * step
    return blocks


def _combined(choices: list[list[Block]], offset: int = 0, fixed: tuple[Atom, ...] = ()) -> list[Block]:
    """The products of one block from each list."""
    return [
        Block(
            tuple(atom for block in combination for atom in block.atoms),
            tuple(stride for block in combination for stride in block.strides),
            tuple(axis for block in combination for axis in block.axes),
            offset + sum(block.offset for block in combination),
            fixed,
        )
        for combination in product(*choices)
    ]
