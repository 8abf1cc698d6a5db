"""The tree: whoever computes which nodes, the root has the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave import Algorithm, Gradient, Map, Mean, Reduce, Sgd, State, Update, UsageError
from roundweave.tasks.algorithms.reduces.tree import cover, fold


@dataclass(frozen=True)
class Trace(Reduce):
    """Writes down who was joined with whom."""

    def join(self, left: str, right: str) -> str:
        return f"({left} {right})"

    def finish(self, state: State, node: str) -> str:
        return node


@st.composite
def blocks(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    partitions = draw(st.integers(1, 40))
    cuts = draw(st.sets(st.integers(1, partitions - 1))) if partitions > 1 else set()
    return partitions, list(pairwise([0, *sorted(cuts), partitions]))


def by_blocks(reduce, leaves, partitions: int, spans: list[tuple[int, int]]):
    """The root by way of the nodes that each block computes on its own."""

    def leaf(first: int, last: int):
        if last - first > 1:
            raise KeyError
        return leaves[first]

    nodes = {node: fold(reduce, node, leaf) for span in spans for node in cover(0, partitions, *span)}
    return fold(reduce, (0, partitions), lambda first, last: nodes[first, last])


def test_the_tree_splits_in_the_upper_middle() -> None:
    names = list("abcdefg")
    assert by_blocks(Trace(), names, 5, [(0, 5)]) == "(((a b) c) (d e))"
    assert by_blocks(Trace(), names, 7, [(0, 7)]) == "(((a b) (c d)) ((e f) g))"


@given(blocks(), st.data())
def test_any_blocks_and_any_absences_give_the_same_tree(case, data: st.DataObject) -> None:
    partitions, spans = case
    absent = data.draw(st.sets(st.integers(0, partitions - 1)))
    leaves = [None if n in absent else str(n) for n in range(partitions)]
    whole = by_blocks(Trace(), leaves, partitions, [(0, partitions)])
    assert by_blocks(Trace(), leaves, partitions, spans) == whole
    present = [leaf for leaf in leaves if leaf is not None]
    assert (whole or "").replace("(", "").replace(")", "").split() == present


def test_the_bits_do_depend_on_the_shape_of_the_tree() -> None:
    """Else that folds change no bit, as `tests/tasks/rounds/test_folds.py` says, would show nothing."""
    one, two, three = (Update({"float32": torch.tensor([number])}) for number in (1e8, -1e8, 1.0))
    left = Mean().join(Mean().join(one, two), three)
    right = Mean().join(one, Mean().join(two, three))
    assert (left.direction["float32"].item(), right.direction["float32"].item()) == (1.0, 0.0)


# What a part declares.


class Own:
    """Inherits nothing, though it has the shape of each of the three."""

    carry = extras = ()

    def __call__(self, *anything: object) -> None:
        raise AssertionError

    init = bound = join = finish = __call__


@pytest.mark.parametrize("part", ["map", "reduce", "apply"])
def test_a_part_that_does_not_inherit_is_refused_by_name(part: str) -> None:
    parts = {"map": Gradient(), "reduce": Mean(), "apply": Sgd()} | {part: Own()}
    with pytest.raises(UsageError, match=f"^{part} Own must inherit roundweave.{part.title()}$"):
        Algorithm(**parts)


@dataclass
class Changing(Map):
    """It can count its calls, so that a round depends on those before it."""

    calls: int = 0


class Holding(Map):
    """The same without fields that say so."""

    def __init__(self) -> None:
        self.calls = 0


@pytest.mark.parametrize("map", [Changing(), Holding()])
def test_a_part_that_can_change_is_refused(map: Map) -> None:
    with pytest.raises(UsageError, match=rf"^{type(map).__name__} may change .* write @dataclass\(frozen=True\)$"):
        Algorithm(map, Mean(), Sgd())


@pytest.mark.parametrize("slot", ["carry", "extras"])
def test_slots_that_are_no_tuple_are_named(slot: str) -> None:
    forgotten = type("Forgotten", (Gradient,), {slot: ("momentum")})
    with pytest.raises(UsageError, match=f"^{slot} of map Forgotten must be a tuple of slots, not 'momentum'$"):
        Algorithm(forgotten(), Mean(), Sgd())
