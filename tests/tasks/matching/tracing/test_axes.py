"""Axes computed by hand."""

from __future__ import annotations

from roundweave.tasks.matching.tracing.axes import Atom, union


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
