"""Splits tensors into blocks that are plain products of atoms, following the atoms' choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tasks.matching.tracing.axes import Atom, Axes, Axis, find, length


@dataclass(frozen=True)
class Block:
    """A part of a tensor that is a plain product of atoms: its offset, and the stride and axis of each atom.

    `fixed` are further atoms at one of whose indices the block lies.
    """

    atoms: tuple[Atom, ...] = ()
    strides: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    offset: int = 0
    fixed: tuple[Atom, ...] = ()


def placed(axes: Axes, shape: Sequence[int]) -> list[Block]:
    """The blocks of a contiguous tensor, with atoms that were cut or have choices followed to their parts."""
    steps = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        steps[axis] = steps[axis + 1] * shape[axis + 1]
    return [stage for block in products(axes, steps) for stage in stages(block) if not _follow(stage)]


def products(axes: Axes, steps: Sequence[int] | None = None) -> list[Block]:
    """The blocks of a tensor without following choices; `steps` are the strides of its axes."""
    places = enumerate(zip(axes, steps or [1] * len(axes), strict=True))
    return _combined([_axis_blocks(axis, place, step) for place, (axis, step) in places])


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
    beside = block.atoms[position]
    choices = []
    for i, (atom, stride, axis) in enumerate(zip(block.atoms, block.strides, block.axes, strict=True)):
        if i != position:
            here = atom.chosen.get(beside, {}).get(index, atom)
            choices.append(_axis_blocks([[here]], axis, stride))
    offset = block.offset + index * block.strides[position]
    return _combined(choices, offset, (*block.fixed, beside))


def _axis_blocks(axis: Axis, place: int, step: int) -> list[Block]:
    """The blocks of one axis, the one at `place`, with stride `step`."""
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
    """All products of blocks, one from each list."""
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
