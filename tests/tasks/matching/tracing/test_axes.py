"""Layouts computed by hand."""

from __future__ import annotations

import pytest

from tasks.matching.tracing.axes import (
    Atom,
    LayoutMismatch,
    broadcast,
    choose,
    cut,
    expand,
    factor,
    find,
    leaves,
    length,
    lone_atom,
    merge,
    new_axis,
    new_layout,
    pin,
    unify,
    view,
)
from tasks.matching.tracing.blocks import placed


def sizes(axis):
    """An axis as the sizes of the atoms of its segments."""
    return [[atom.size for atom in segment] for segment in expand(axis)]


def same(left, right):
    return [[find(a) for a in segment] for segment in expand(left)] == [
        [find(a) for a in segment] for segment in expand(right)
    ]


def test_a_view_splits_an_axis_and_merges_it_again():
    layout = new_layout([5, 12])
    split = view(layout, [5, 3, 4])
    assert [sizes(axis) for axis in split] == [[[5]], [[3]], [[4]]]
    assert same(split[0], layout[0]) and sizes(layout[1]) == [[3, 4]]
    merged = view(split, [5, 12])
    assert same(merged[1], layout[1])
    assert [sizes(axis) for axis in view(merged, [60])] == [[[5, 3, 4]]]


def test_views_that_do_not_fit_one_another_pin():
    layout = new_layout([12])
    view(layout, [3, 4])
    view(layout, [4, 3])
    assert all(atom.pinned and "groups units by" in atom.pinned for atom in leaves(layout[0]))


def test_a_view_refines_what_an_earlier_one_left_whole():
    layout = new_layout([24])
    view(layout, [2, 12])
    view(layout, [8, 3])
    assert sizes(layout[0]) == [[2, 4, 3]] and not any(atom.pinned for atom in leaves(layout[0]))


def test_ones_come_and_go():
    layout = new_layout([1, 6, 1])
    assert [length(axis) for axis in view(layout, [6])] == [6]
    assert [length(axis) for axis in view(layout, [2, 1, 3, 1])] == [2, 1, 3, 1]


def test_cuts_at_different_places_make_the_parts_between():
    axis = new_axis(10)
    cut(axis, [4, 6])
    cut(axis, [7, 3])
    assert sizes(axis) == [[4], [3], [3]]
    left, right = cut(axis, [4, 6])
    assert sizes(left) == [[4]] and sizes(right) == [[3], [3]]


def test_a_cut_of_a_product_keeps_whole_rows():
    axis = new_axis(12)
    rows, columns = factor(axis, 4, 3)
    cut(axis, [6, 6])
    assert sizes(axis) == [[4, 3]] or sizes(axis) == [[2, 3], [2, 3]]
    assert lone_atom(columns).pinned is None and lone_atom(rows) is None


def test_a_cut_across_rows_pins():
    axis = new_axis(12)
    factor(axis, 4, 3)
    cut(axis, [4, 8])
    assert all(atom.pinned for atom in leaves(axis))


def test_unifying_is_transitive_and_carries_pins_along():
    one, two, three = new_axis(6), new_axis(6), new_axis(6)
    unify(one, two)
    unify(two, three)
    pin(three, "here")
    assert same(one, three) and lone_atom(one).pinned == "here"


def test_a_sum_and_a_whole_become_the_same():
    parts, whole = [*new_axis(2), *new_axis(4)], new_axis(6)
    pin(parts[:1], "first")
    unify(whole, parts)
    assert [segment[0].pinned for segment in expand(whole)] == ["first", None]


def test_axes_of_different_lengths_are_refused():
    with pytest.raises(LayoutMismatch, match="axes of 3 and 4 units are paired"):
        unify(new_axis(3), new_axis(4))


def test_broadcasting_pairs_from_the_right_and_stretches_ones():
    left, right = new_layout([7, 1, 4]), new_layout([5, 4])
    found = broadcast(left, right)
    assert [length(axis) for axis in found] == [7, 5, 4]
    assert same(found[0], left[0]) and same(found[1], right[0]) and same(left[2], right[1])


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
    layout = new_layout([2, 3, 4])
    pin(layout[0], "selected")
    chosen = choose(layout[2], lone_atom(layout[0]), 0)
    found = placed(layout, (2, 3, 4))
    assert [(b.offset, b.strides, b.axes) for b in found] == [(0, (4, 1), (1, 2)), (12, (4, 1), (1, 2))]
    assert [b.atoms[1] for b in found] == [lone_atom(chosen), lone_atom(layout[2])]


def test_blocks_of_a_sum_and_of_nothing():
    parts = [*new_axis(2), *new_axis(3)]
    assert [(b.offset, b.strides) for b in placed([new_axis(4), parts], (4, 5))] == [(0, (5, 1)), (2, (5, 1))]
    assert placed([new_axis(0), new_axis(3)], (0, 3)) == []
    assert [(b.atoms, b.offset) for b in placed([], ())] == [((), 0)]


def test_leaves_end_where_a_choice_leads_back():
    atom, beside = Atom(3), Atom(2, "stack")
    other = Atom(3)
    atom.chosen[beside] = {0: other}
    merge(atom, other)
    assert list(leaves([[atom]])) == [find(atom)]
