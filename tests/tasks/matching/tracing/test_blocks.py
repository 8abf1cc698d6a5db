"""Blocks computed by hand."""

from __future__ import annotations

from tasks.matching.tracing.axes import Atom, concatenation, new_axes
from tasks.matching.tracing.blocks import placed


def test_blocks_of_a_packed_axis():
    """(3 x 4, 5) with a pinned outer three, at whose middle index the four are units of their own."""
    packed, inputs = Atom(12), Atom(5)
    outer, units = packed.factored(3, 4)
    outer.pin("packed")
    chosen = units.at(outer.whole, 1)
    found = placed([packed, inputs], (12, 5))
    own = [units.whole, chosen.whole, units.whole]
    assert [(b.atoms[0], b.offset, b.strides) for b in found] == [(own[i], 20 * i, (5, 1)) for i in range(3)]
    assert all(block.axes == (0, 1) and block.fixed == (outer.whole,) for block in found)


def test_blocks_follow_choices_from_one_axis_to_another():
    axes = new_axes([2, 3, 4])
    axes[0].pin("selected")
    chosen = axes[2].at(axes[0].whole, 0)
    found = placed(axes, (2, 3, 4))
    assert [(b.offset, b.strides, b.axes) for b in found] == [(0, (4, 1), (1, 2)), (12, (4, 1), (1, 2))]
    assert [b.atoms[1] for b in found] == [chosen.whole, axes[2].whole]


def test_blocks_of_a_sum_and_of_nothing():
    parts = concatenation(Atom(2), Atom(3))
    assert [(b.offset, b.strides) for b in placed([Atom(4), parts], (4, 5))] == [(0, (5, 1)), (2, (5, 1))]
    assert placed([Atom(0), Atom(3)], (0, 3)) == []
    assert [(b.atoms, b.offset) for b in placed([], ())] == [((), 0)]
