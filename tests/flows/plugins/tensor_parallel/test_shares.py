"""What is cut can be joined again: every element is on one rank, or the same on all."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.flows.plugins.tensor_parallel.shares import Cut, Shares
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec, pack, views

FEW = settings(max_examples=25)


@st.composite
def cuts(draw, size: int, ranks: int, axis: int = 0) -> Cut:
    """Each index of an axis on a rank of its own choice, or on all (`ranks`); each rank has one at least."""
    where = draw(st.lists(st.integers(0, ranks), min_size=size, max_size=size))
    where = [rank % (ranks + 1) for rank in (*range(ranks), *where[ranks:])]
    return Cut(axis, tuple(spans_of([home in {rank, ranks} for home in where]) for rank in range(ranks)))


def spans_of(kept: list[bool]) -> tuple[tuple[int, int], ...]:
    edges = [number for number, (a, b) in enumerate(pairwise([False, *kept, False])) if a != b]
    return tuple(zip(edges[::2], edges[1::2], strict=True))


@st.composite
def layouts(draw) -> Shares:
    """Up to four tensors of two dtypes, some of them cut along one of their axes."""
    ranks = draw(st.integers(1, 4))
    shapes = draw(st.lists(st.lists(st.integers(4, 7), min_size=1, max_size=3), min_size=1, max_size=4))
    specs, chosen = [], {}
    for number, shape in enumerate(shapes):
        spec = TensorSpec(f"t{number}", draw(st.sampled_from(["float32", "float64"])), tuple(shape))
        specs.append(spec)
        if draw(st.booleans()):
            axis = draw(st.integers(0, len(shape) - 1))
            chosen[spec.name] = draw(cuts(shape[axis], ranks, axis))
    return Shares(ranks, Layout(tuple(specs)), chosen, (), ())


def numbered(shares: Shares, start: int = 0) -> State:
    """A state of which no two elements are alike."""
    tensors, at = {}, start
    for spec in shares.layout.params:
        size = prod(spec.shape)
        tensors[spec.name] = torch.arange(at, at + size, dtype=getattr(torch, spec.dtype)).reshape(spec.shape)
        at += size
    return State(pack(shares.layout.params, tensors))


@FEW
@given(layouts())
def test_what_is_cut_and_joined_is_what_it_was(shares: Shares) -> None:
    whole, memory = numbered(shares).params, numbered(shares, 1000).params
    state = State(whole, memory={"slot": memory})
    parts = [shares.state(state, rank) for rank in range(shares.ranks)]
    updates = [Update(p.params, extras={"e": p.memory["slot"]}, carry={"c": p.memory["slot"]}) for p in parts]
    joined = shares.joined(updates)
    for found, wanted in ((joined.direction, whole), (joined.extras["e"], memory), (joined.carry["c"], memory)):
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[dtype], wanted[dtype]) for dtype in wanted)


@FEW
@given(layouts())
def test_a_rank_s_layout_says_where_its_tensors_lie(shares: Shares) -> None:
    state = numbered(shares)
    for rank in range(shares.ranks):
        params, specs = shares.state(state, rank).params, shares.layout_of(rank).params
        assert {name: tensor.shape for name, tensor in views(specs, params).items()} == {
            spec.name: torch.Size(spec.shape) for spec in specs
        }
        for spec in shares.layout.params:
            part = shares.share(spec.name, views(shares.layout.params, state.params)[spec.name], rank)
            assert torch.equal(views(specs, params)[spec.name], part)


@FEW
@given(st.data())
def test_parts_are_in_memory_of_their_own(data) -> None:
    cut = data.draw(cuts(6, 2))
    whole = torch.zeros(6, 3)
    cut.share(whole, 0).fill_(1.0)
    assert not whole.any()


@FEW
@given(st.data())
def test_rows_by_the_part_are_the_rows_of_a_rank(data) -> None:
    ranks, axis = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 1))
    cut, whole = data.draw(cuts(7, ranks, axis)), torch.arange(49).reshape(7, 7)
    edges = [0, *sorted(data.draw(st.sets(st.integers(1, 6)))), 7]
    for rank in range(ranks):
        wanted = cut.share(whole, rank)
        for first, end in pairwise(edges):
            begin, until = cut.rows_of(rank, first, end)
            assert torch.equal(cut.rows(first, end).share(whole[first:end], rank), wanted[begin:until])
        assert cut.rows_of(rank, 0, 7) == (0, len(wanted))
