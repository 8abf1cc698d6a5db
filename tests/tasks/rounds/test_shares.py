"""Large rounds that are reduced and applied share by share have the bits of those that are computed as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import same_bits
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.optimizers import Adagrad, Adam, Drift, KeepExtras, Sgd, Yogi
from roundweave.tasks.algorithms.maps.gradient import Gradient
from roundweave.tasks.algorithms.reduces.mean import ClippedMean, Fair, Mean, Normalised, Worst
from roundweave.tasks.algorithms.reduces.robust import Median, TrimmedMean
from roundweave.tasks.algorithms.reduces.tree import fold_updates
from roundweave.tasks.rounds.shares import SHARE_BYTES, Nodes, by_shares, shares_of

APPLIES = (
    Sgd(0.3),
    Sgd(0.3, momentum=0.9),
    Sgd(0.3, momentum=0.9, nesterov=True),
    Adam(),
    Yogi(),
    Adagrad(),
    Drift(),
    KeepExtras(Adam(), ("kept",), partitions=5),
)
REDUCES = (Mean(), Mean(weighted=False), Median(), Normalised(), Worst())
DTYPES = ("float32", "float64", "bfloat16")


def vectors(elements: int, *dtypes: str) -> dict[str, torch.Tensor]:
    return {dtype: torch.randn(elements).to(getattr(torch, dtype)) for dtype in dtypes}


def sent_by(partition: int, elements: int, dtypes: Iterable[str]) -> Update:
    """An update with all that the reduces ask for."""
    numbers = {"walked": partition + 0.7, "log_weight": partition / 3}
    extras = {"kept": vectors(elements, *dtypes)}
    return Update(vectors(elements, *dtypes), vectors(3, "float32"), extras, partition + 1, numbers)


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 300), st.integers(2, 9))


@settings(deadline=None)
@given(SIZES, st.sampled_from(REDUCES), st.sampled_from(APPLIES), st.sets(st.sampled_from(DTYPES)))
def test_shares_have_the_bits_of_the_whole(sizes, reduce, apply, dtypes) -> None:
    updates, elements, shares = sizes
    torch.manual_seed(elements)
    params, buffers = vectors(elements, "float32", *dtypes), vectors(3, "float32")
    state = State(params, buffers, vectors(2, "float64"), apply.init(params), round=4)
    sent = [sent_by(n, elements, params) for n in range(updates)]

    def step(state: State, nodes: Nodes) -> tuple[State, Update]:
        reduced = replace(reduce.finish(state, nodes[0, updates]), count=updates)
        return apply(state, reduced), reduced

    nodes = {(0, updates): fold_updates(reduce, (0, updates), dict(enumerate(sent)))}
    (whole, _), (after, reduced) = (by_shares(step, state, nodes, number) for number in (1, shares))
    assert after.round == whole.round == 5
    assert same_bits(reduced.buffers["float32"], after.buffers["float32"])
    pairs = [(whole.params, after.params), (whole.buffers, after.buffers), (whole.frozen, after.frozen)]
    for one, other in [*pairs, *((whole.memory[slot], after.memory[slot]) for slot in whole.memory)]:
        assert one.keys() == other.keys()
        assert all(same_bits(one[name], other[name]) for name in one)
    assert after.memory.keys() == whole.memory.keys()


class Own(Adam):
    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        return before + square.mean()


def test_only_large_states_whose_elements_are_computed_alone_have_shares() -> None:
    large = State({"float32": torch.empty(SHARE_BYTES), "float64": torch.empty(5, dtype=torch.float64)})
    alone = Algorithm(Gradient(), Mean(), Sgd())
    assert shares_of(alone, large) == 4
    assert shares_of(alone, State({"float32": torch.empty(9)})) == 1
    assert shares_of(Algorithm(Gradient(), Median(), KeepExtras(Adam(), ())), large) == 4
    others = {"reduce": (ClippedMean(), TrimmedMean(1), Fair()), "apply": (KeepExtras(Own(), ()), Own())}
    for part, values in others.items():
        assert all(shares_of(replace(alone, **{part: value}), large) == 1 for value in values)


RUNS = ({}, {"algorithm": "fed_adam"}, {"algorithm": "scaffold"}, {"outer_momentum": 0.5}, {"reduce": "median"})


@pytest.mark.parametrize("fields", RUNS)
def test_a_run_in_shares_is_the_same_and_replays(train, monkeypatch, fields) -> None:
    fields = {"algorithm": "fed_avg", "model": "cnn", "rounds": 3, "local_steps": 2, "partitions": 3} | fields
    whole = train(**fields, name="whole")
    monkeypatch.setattr("roundweave.tasks.rounds.shares.SHARE_BYTES", 4096)
    run = train(**fields, name="shares")
    assert run.digest == whole.digest
    assert run.replay("all").identical
