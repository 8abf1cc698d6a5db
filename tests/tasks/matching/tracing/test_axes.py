"""Axes computed by hand."""

from __future__ import annotations

import pytest

from tasks.matching.tracing.axes import Atom, AxesMismatch, new_axes, unify, union
from tasks.matching.tracing.rules.shapes import view


def sizes(axis):
    """An axis as the sizes of the atoms of its segments."""
    return [[atom.size for atom in segment] for segment in axis.segments]


def same(left, right):
    return left.segments == right.segments


def pins(axis):
    return [atom.pinned for segment in axis.segments for atom in segment]


def test_a_view_splits_an_axis_and_merges_it_again():
    axes = new_axes([5, 12])
    split = view(axes, [5, 3, 4])
    assert [sizes(axis) for axis in split] == [[[5]], [[3]], [[4]]]
    assert same(split[0], axes[0]) and sizes(axes[1]) == [[3, 4]]
    merged = view(split, [5, 12])
    assert same(merged[1], axes[1])
    assert [sizes(axis) for axis in view(merged, [60])] == [[[5, 3, 4]]]


def test_views_that_do_not_fit_one_another_pin():
    axes = new_axes([12])
    view(axes, [3, 4])
    view(axes, [4, 3])
    assert all("groups units by" in why for why in pins(axes[0]))


def test_cuts_at_different_places_make_the_parts_between():
    axis = Atom(10)
    axis.cut([4, 6])
    axis.cut([7, 3])
    assert sizes(axis) == [[4], [3], [3]]
    left, right = axis.cut([4, 6])
    assert sizes(left) == [[4]] and sizes(right) == [[3], [3]]


def test_a_cut_across_rows_pins():
    axis = Atom(12)
    axis.factored(4, 3)
    axis.cut([4, 8])
    assert all(pins(axis))


def test_axes_of_different_lengths_are_refused():
    with pytest.raises(AxesMismatch, match="axes of 3 and 4 units are paired"):
        unify(Atom(3), Atom(4))


def test_a_walk_ends_where_a_choice_leads_back():
    atom, beside = Atom(3), Atom(2, "stack")
    other = Atom(3)
    atom.chosen[beside] = {0: other}
    union(atom, other)
    assert list(atom.walk()) == [atom.root]


def test_a_choice_is_kept_though_the_one_before_it_makes_the_atom_another() -> None:
    """One is itself in its own choice, and the other's choice there is cut: both become that, with all choices."""
    beside, third, mine = Atom(2), Atom(2), Atom(4)
    cut_already = Atom(4)
    cut_already.cut([1, 3])
    one, other = Atom(4), Atom(4)
    one.chosen = {beside: {0: cut_already}}
    other.chosen = {beside: {0: other}, third: {1: mine}}
    union(one, other)
    assert one.root is other.root is cut_already.root
    assert one.root.chosen[third] == {1: mine}
