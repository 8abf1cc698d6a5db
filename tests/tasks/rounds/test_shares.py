"""Large rounds that are reduced and applied share by share have the bits of those that are computed as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave import Algorithm, Gradient, Median, State, TrimmedMean, Update
from roundweave.storage.values.tensors import Vectors, same_bits
from roundweave.tasks.algorithms.applies.optimizers import Adagrad, Adam, Drift, KeepExtras, Sgd, Yogi
from roundweave.tasks.algorithms.reduces.mean import ClippedMean, Fair, Mean, Normalised, Worst
from roundweave.tasks.algorithms.reduces.tree import fold, fold_updates
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.rounds import shares as sharing
from roundweave.tasks.rounds.shares import Nodes, by_shares, joined_update, shares_of
from tests.rows import but_first
from tests.tasks.executors.deeds import beside

SGDS = (Sgd(0.3), Sgd(0.3, momentum=0.9), Sgd(0.3, momentum=0.9, nesterov=True))
APPLIES = (*SGDS, Adam(), Yogi(), Adagrad(), Drift(), KeepExtras(Adam(), ("kept",), partitions=5))
REDUCES = (Mean(), Mean(weighted=False), Median(), Normalised(), Worst())
DTYPES = ("float32", "float64", "bfloat16")


def vectors(elements: int, *dtypes: str) -> dict[str, torch.Tensor]:
    return {dtype: torch.randn(elements).to(getattr(torch, dtype)) for dtype in dtypes}


def sent_by(partition: int, elements: int, dtypes: Iterable[str]) -> Update:
    """An update with all that the reduces ask for."""
    numbers = {"walked": partition + 0.7, "log_weight": partition / 3}
    extras = {"kept": vectors(elements, *dtypes)}
    return Update(vectors(elements, *dtypes), vectors(3, "float32"), extras, partition + 1, numbers)


def same(some: Vectors, others: Vectors) -> bool:
    return some.keys() == others.keys() and all(same_bits(some[name], others[name]) for name in some)


SIZES = st.tuples(st.integers(1, 6), st.integers(1, 300), st.integers(2, 9))


PARTS = st.sampled_from(REDUCES), st.sampled_from(APPLIES), st.sets(st.sampled_from(DTYPES))


@settings(deadline=None)
@given(SIZES, st.integers(0, 5), *PARTS)
def test_shares_have_the_bits_of_the_whole(sizes, refused, reduce, apply, dtypes) -> None:
    """Of a state that one process makes share by share, and of the update that ranks put together."""
    updates, elements, shares = sizes
    torch.manual_seed(elements)
    params, buffers = vectors(elements, "float32", *dtypes), vectors(3, "float32")
    state = State(params, buffers, vectors(2, "float64"), apply.init(params), round=4)
    sent = {n: None if n == refused and updates > 1 else sent_by(n, elements, params) for n in range(updates)}
    root, half = (0, updates), (updates + 1) // 2
    halves = [(0, half), (half, updates)] if updates > 1 else [root]
    nodes = {node: fold_updates(reduce, node, {p: sent[p] for p in range(*node)}) for node in halves}

    def reduced(state: State, nodes: Nodes) -> Update:
        found = reduce.finish(state, fold(reduce, root, lambda first, last: nodes[first, last]))
        return replace(found, count=updates)

    def step(state: State, nodes: Nodes) -> tuple[State, Update]:
        return apply(state, update := reduced(state, nodes)), update

    (whole, update), (after, last) = (by_shares(step, state, nodes, number) for number in (1, shares))
    assert after.round == whole.round == 5
    assert same(last.buffers, update.buffers)
    assert all(same(getattr(whole, name), getattr(after, name)) for name in ("params", "buffers", "frozen"))
    assert after.memory.keys() == whole.memory.keys()
    assert all(same(after.memory[slot], whole.memory[slot]) for slot in whole.memory)
    parts = [(sharing.state_share(state, n, shares), sharing.nodes_share(nodes, n, shares)) for n in range(shares)]
    joined = joined_update([reduced(*part) for part in parts])
    assert joined.weight == update.weight
    assert same(joined.direction, update.direction)
    assert same(joined.buffers, update.buffers)
    assert same(joined.extras["kept"], update.extras["kept"])


class Own(Adam):
    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        return before + square.mean()


def test_only_large_states_whose_elements_are_computed_alone_have_shares() -> None:
    large = State({"float32": torch.empty(sharing.SHARE_BYTES), "float64": torch.empty(5, dtype=torch.float64)})
    alone = Algorithm(Gradient(), Mean(), Sgd())
    assert shares_of(alone, large) == 4
    assert shares_of(alone, State({"float32": torch.empty(9)})) == 1
    assert shares_of(Algorithm(Gradient(), Median(), KeepExtras(Adam(), ())), large) == 4
    others = {"reduce": (ClippedMean(), TrimmedMean(1), Fair()), "apply": (KeepExtras(Own(), ()), Own())}
    for part, values in others.items():
        assert all(shares_of(replace(alone, **{part: value}), large) == 1 for value in values)


RUNS = ({}, {"algorithm": "fed_adam"}, {"algorithm": "scaffold"}, {"outer_momentum": 0.5}, {"reduce": "median"})


@pytest.mark.parametrize("fields", but_first([{"algorithm": "fed_adam"}], RUNS))
def test_a_run_in_shares_is_the_same_and_replays(train, monkeypatch, fields) -> None:
    fields = {"algorithm": "fed_avg", "model": "cnn", "rounds": 3, "local_steps": 2, "partitions": 3} | fields
    whole = train(**fields, name="whole")
    monkeypatch.setattr("roundweave.tasks.rounds.shares.SHARE_BYTES", 4096)
    run = train(**fields, name="shares")
    assert run.digest == whole.digest
    assert run.replay("all").identical


four = beside(4)
"""More workers than tests share: of two, none sends less."""


@pytest.mark.parametrize("algorithm", ["scaffold", "fed_avg"])
@pytest.mark.thorough
def test_a_group_of_four_sends_half_of_what_it_would_and_gives_the_same_bits(train, four, algorithm) -> None:
    """Whole updates: each of four ranks has its own for three others. In shares: a quarter for each, twice."""
    fields = {"algorithm": algorithm, "model_options": {"hidden": 10_000}, "partitions": 6, "rounds": 3}
    fields |= {"local_steps": 1}
    reference = train(**fields, name="reference")
    run = train(RanksExecutor(four), 3, **fields, name="shared")
    assert run.digest == reference.digest
    commit = run.round(2).commit
    assert (commit.executor, commit.process_group.ranks) == ("ranks", 4)
    size = sum(update.numel() * 4 for update in run.round(2).params.values())
    size *= 2 if algorithm == "scaffold" else 1  # its control variates are sent, too
    # Of six partitions in four blocks two have one node, and two have one of two partitions: four vectors.
    assert commit.process_group.exchanged["updates"] == pytest.approx((3 + 3) * size, rel=0.01)
