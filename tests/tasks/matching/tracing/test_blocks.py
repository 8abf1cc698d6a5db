"""Blocks computed by hand."""

from __future__ import annotations

from tasks.matching.tracing.axes import choose, factor, lone_atom, new_axes, new_axis, pin
from tasks.matching.tracing.blocks import placed


def test_blocks_of_a_packed_axis():
    """(3 x 4, 5) with a pinned outer three, at whose middle index the four are units of their own."""
    packed, inputs = new_axis(12), new_axis(5)
    outer, units = factor(packed, 3, 4)
    pin(outer, "packed")
    chosen = choose(units, lone_atom(outer), 1)
    found = placed([packed, inputs], (12, 5))
    own = [lone_atom(units), lone_atom(chosen), lone_atom(units)]
    assert [(b.atoms[0], b.offset, b.strides) for b in found] == [(own[i], 20 * i, (5, 1)) for i in range(3)]
    assert all(block.axes == (0, 1) and block.fixed == (lone_atom(outer),) for block in found)


def test_blocks_follow_choices_from_one_axis_to_another():
    axes = new_axes([2, 3, 4])
    pin(axes[0], "selected")
    chosen = choose(axes[2], lone_atom(axes[0]), 0)
    found = placed(axes, (2, 3, 4))
    assert [(b.offset, b.strides, b.axes) for b in found] == [(0, (4, 1), (1, 2)), (12, (4, 1), (1, 2))]
    assert [b.atoms[1] for b in found] == [lone_atom(chosen), lone_atom(axes[2])]


def test_blocks_of_a_sum_and_of_nothing():
    parts = [*new_axis(2), *new_axis(3)]
    assert [(b.offset, b.strides) for b in placed([new_axis(4), parts], (4, 5))] == [(0, (5, 1)), (2, (5, 1))]
    assert placed([new_axis(0), new_axis(3)], (0, 3)) == []
    assert [(b.atoms, b.offset) for b in placed([], ())] == [((), 0)]
