"""Replicas that are trained side by side, against one at a time, and networks that are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import roundweave as rw
from roundweave.flows.plugins.stacked.replicas import (
    Stacked,
    StackedMapper,
    check_stackable,
    drawn_rows,
    stacked_steps,
)
from roundweave.storage.errors import ModelError
from roundweave.tasks.compute.mapper import MapInput, Mapper
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import find_code
from tests.flows.plugins.stacked.networks import NETWORKS
from tests.flows.plugins.tensor_parallel.networks import examples_of
from tests.rows import but_first

SIZES = (40, 33, 40, 8, 64, 21, 16)
LOCAL = rw.LocalSteps(local_epochs=2, batch_size=16, lr=0.1)


def objective(kind: str, own, dtype: str = "float64") -> Objective:
    inputs = (12,) if kind == "gpt" else (1, 4, 4)
    model = kind if kind in ("logistic", "mlp", "gpt") else find_code(f"{own(NETWORKS)}:{kind}")
    return Objective(ModelSpec(model, inputs, 3, dtype, 0), "cross_entropy")


def stacked(rule: rw.LocalSteps, count: int) -> Any:
    return partial(StackedMapper(at_once=count) if count > 1 else Mapper(), rule)


def inputs(parts: Sequence[rw.Examples], seeds: Sequence[int]) -> list[MapInput]:
    """What is mapped of partitions that carry nothing."""
    return [(each, {}, seed) for each, seed in zip(parts, seeds, strict=True)]


def updates(mapper: Any, what: Objective, parts, seeds, state: rw.State | None = None) -> list[rw.Update]:
    state, found = state or what.initial(), list[rw.Update]()
    with pinned(0, threads=1):
        for first in range(0, len(parts), mapper.func.at_once):
            found += mapper(what, state, inputs(parts, seeds)[first : first + mapper.func.at_once])
    return found


def same(one: rw.Update, other: rw.Update) -> bool:
    return all(torch.equal(vector, other.direction[name]) for name, vector in one.direction.items())


KINDS = ("mlp", "logistic", "gpt", "Convolutions", "Frozen", "Idle", "Tied")


@pytest.mark.parametrize("kind", but_first(["gpt", "Frozen"], KINDS))
@pytest.mark.dear("the first one imports what batches functions of torch")
def test_rounds_are_those_of_the_loop_up_to_rounding(own, kind) -> None:
    what = objective(kind, own)
    parts, seeds = [examples_of(what, count, count) for count in SIZES], range(len(SIZES))
    rule = replace(LOCAL, lr_schedule="step:1:0.5")
    ends = []
    algorithm = rw.Algorithm(rule, rw.Mean(), rw.Sgd(1.0))
    for mapper in (stacked(rule, 1), stacked(rule, 4)):
        state = what.initial()
        for _ in range(2):
            found = updates(mapper, what, parts, seeds, state)
            state = algorithm.apply(state, rw.reduce_all(algorithm.reduce, state, found))
        ends.append((state, [(update.weight, update.metrics) for update in found]))
    (alone, told), (beside, told_too) = ends
    for name, vector in alone.params.items():
        assert not torch.equal(vector, what.initial().params[name])
        assert (beside.params[name] - vector).abs().max() <= 1e-12
    assert [weight for weight, _ in told] == [weight for weight, _ in told_too] == list(SIZES)
    for (_, one), (_, other) in zip(told, told_too, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_a_step_of_two_replicas_by_hand(own) -> None:
    """y = w x + b of 0, mean squares: the gradient is -2 mean(x y), -2 mean(y)."""
    what = Objective(ModelSpec("linear", (1,), 1, "float64", 0), "mse")
    start = rw.State({"float64": torch.zeros(2, dtype=torch.float64)})
    xs, ys = ([1.0, 3.0], [2.0, -1.0]), ([1.0, 2.0], [4.0, 6.0])
    tensors = [(torch.tensor(x).double()[:, None], torch.tensor(y).double()) for x, y in zip(xs, ys, strict=True)]
    parts = [rw.Examples(*pair) for pair in tensors]
    rule = rw.LocalSteps(local_steps=1, batch_size=None, lr=0.5)
    found = stacked(rule, 3)(what, start, inputs(parts, [0, 1]))
    assert [update.direction["float64"].tolist() for update in found] == [[-3.5, -1.5], [-1.0, -5.0]]
    assert [update.metrics["train_loss"] for update in found] == [2.5, 26.0]


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(["mlp", "gpt"]),
    st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(0, 7),
)
def test_the_bits_of_a_replica_do_not_depend_on_its_place_or_its_neighbours(kind, neighbours, place) -> None:
    what = objective(kind, None, "float32")
    rule = stacked(replace(LOCAL, local_steps=3, local_epochs=None), 8)
    own, others = examples_of(what, 40, 77), [examples_of(what, *each) for each in neighbours[:7]]
    others.insert(place % (len(others) + 1), own)
    at = next(number for number, each in enumerate(others) if each is own)
    beside = updates(rule, what, others, [77 if each is own else 1 for each in others])[at]
    with pinned(0, threads=1):
        (alone,) = rule(what, what.initial(), [(own, {}, 77)])
    assert same(beside, alone)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("features", [5, 13, 63])
def test_networks_of_odd_sizes_are_refused_or_have_the_same_bits_anywhere(features, dtype) -> None:
    """Where a factor begins in memory may decide the bits of a product: which, the machine decides."""
    what = Objective(ModelSpec("mlp", (features,), 3, dtype, 0, '{"hidden": 33}'), "cross_entropy")
    sizes, order = [17, 31, 20, 9, 16], [3, 0, 4]
    rule = stacked(rw.LocalSteps(local_steps=3, batch_size=16, lr=0.1), 8)
    parts = [examples_of(what, size, size) for size in sizes]
    try:
        with pinned(0, threads=1):
            rule.func.try_on(*rule.args, what, parts[0], sizes)
    except ModelError as error:
        assert "has other bits in another place" in str(error)
        return
    together = updates(rule, what, parts, sizes)
    found = updates(rule, what, [parts[number] for number in order], [sizes[number] for number in order])
    assert all(same(update, together[number]) for update, number in zip(found, order, strict=True))


def test_a_neighbour_that_is_not_finite_changes_nothing() -> None:
    what = objective("mlp", None, "float32")
    rule = stacked(LOCAL, 4)
    parts = [examples_of(what, count, count) for count in (40, 33, 21)]
    wanted = updates(rule, what, parts, range(3))
    parts[1].inputs[3] = float("nan")
    found = updates(rule, what, parts, range(3))
    assert same(found[0], wanted[0])
    assert same(found[2], wanted[2])
    assert found[1].direction["float32"].isnan().any()


def test_random_numbers_that_only_a_rest_of_a_batch_draws_are_found_out(own) -> None:
    what = objective("PlayingLater", own, "float32")
    mapper, part = StackedMapper(at_once=4), examples_of(what, 16)
    mapper.try_on(LOCAL, what, part, [32])
    with pytest.raises(ModelError, match="PlayingLater cannot be stacked: it draws random numbers"):
        mapper.try_on(LOCAL, what, part, [32, 21])
    mapper.try_on(replace(LOCAL, local_steps=2, local_epochs=None), what, part, [32, 37])


COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def numbered(first: int, count: int) -> rw.Examples:
    """Examples that no other replica has."""
    return rw.Examples(torch.arange(first, first + count).float()[:, None], torch.arange(first, first + count))


def taken(parts: list[rw.Examples], rows: list[list[torch.Tensor]], places: int) -> list[list[list[int]]]:
    """The targets of each batch that each replica takes."""
    found: list[list[list[int]]] = [[] for _ in parts]
    for members, batch in stacked_steps(parts, rows, places):
        inputs, targets = batch.inputs, batch.targets
        assert inputs.is_contiguous()
        assert inputs.storage_offset() == targets.storage_offset() == 0
        assert len(inputs) == len(targets) == places
        assert torch.equal(inputs.squeeze(-1).long(), targets)
        for place, member in enumerate(members):
            found[member].append(targets[place].tolist())
        for copy in targets[len(members) :]:
            assert torch.equal(copy, targets[0])
    return found


@settings(deadline=None, max_examples=25)
@given(COUNTS, st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 9), st.integers(0, 2), st.booleans())
def test_each_replica_takes_its_own_batches_in_their_order(sizes, size, steps, more, drop) -> None:
    whole = size if drop and size and size <= min(sizes) else 1
    parts = [numbered(100 * number, count) for number, count in enumerate(sizes)]
    rows = [drawn_rows(part, size, steps, seed, whole) for seed, part in enumerate(parts)]
    walked = [rw.batches(part, size, steps, seed, whole) for seed, part in enumerate(parts)]
    wanted = [[batch.targets.tolist() for batch in each] for each in walked]
    assert taken(parts, rows, len(parts) + more) == wanted


def test_steps_of_one_length_are_taken_together_by_hand() -> None:
    """Of 5, 4 and 6 examples in batches of 2: two steps of all, then the rests of 2, then 1."""
    parts = [numbered(0, count) for count in (5, 4, 6)]
    rows = [drawn_rows(part, 2, -(-len(part) // 2), 0) for part in parts]
    found = [(members, tuple(batch.targets.shape)) for members, batch in stacked_steps(parts, rows, 4)]
    assert found == [([0, 1, 2], (4, 2))] * 2 + [([2], (4, 2)), ([0], (4, 1))]


COUNT = 8
SOUND = [("mlp", "float64"), ("gpt", "float32"), ("Convolutions", "float32"), ("Idle", "float64")]


@pytest.mark.parametrize(("kind", "dtype"), but_first(SOUND, KINDS, ["float32", "float64"]))
def test_sound_networks_pass_and_stay_as_they_are(own, kind, dtype) -> None:
    what = objective(kind, own, dtype)
    before = what.initial()
    with pinned(0, threads=1):
        check_stackable(Stacked(what, COUNT), examples_of(what, 16))
    assert all(torch.equal(vector, before.params[name]) for name, vector in what.initial().params.items())


def test_forward_passes_in_bfloat16_are_alike_as_far_as_it_rounds(own) -> None:
    what, rule = objective("mlp", own, "float32"), replace(LOCAL, local_steps=1, local_epochs=None)
    parts, what = [examples_of(what, 16, number) for number in range(2)], replace(what, precision="bf16")
    with pinned(0, threads=1):
        StackedMapper(at_once=2).try_on(rule, what, parts[0], (16,))
    beside, alone = (updates(stacked(rule, n), what, parts, [0, 1]) for n in (2, 1))
    for one, other in zip(beside, alone, strict=True):
        direction = other.direction["float32"]
        assert torch.dist(one.direction["float32"], direction) < 2**-5 * direction.norm()


@pytest.mark.parametrize(
    ("kind", "why"), [("Playing", "it draws random numbers"), ("Branching", "they fail with RuntimeError: vmap: ")]
)
def test_what_cannot_be_stacked_is_refused_by_its_reason(own, kind, why) -> None:
    what = objective(kind, own, "float32")
    with pytest.raises(ModelError) as error, pinned(0, threads=1):
        check_stackable(Stacked(what, COUNT), examples_of(what, 16))
    assert f"mine.py:{kind} cannot be stacked: {why}" in str(error.value)
    assert "leave stacked at 1" in str(error.value)


FAULTS = {
    "a step of one has other bits in another place, or beside others; leave stacked at 1, or try": [
        lambda losses: losses * torch.linspace(1, 1.0001, COUNT),  # by place
        lambda losses: losses * (1 + losses.roll(1).detach() / 1000),  # by the neighbour
    ],
    "the gradient of a replica differs from the one that it has alone": [lambda losses: losses * 1.01],
}


@dataclass(frozen=True)
class Faulty(Stacked):
    """Losses of replicas are changed."""

    change: Callable[[torch.Tensor], torch.Tensor]

    def loss_of(self, *given: Any) -> torch.Tensor:
        return self.change(super().loss_of(*given))


@pytest.mark.parametrize(("why", "change"), [(why, change) for why in FAULTS for change in FAULTS[why]])
def test_replicas_that_are_not_as_if_alone_are_refused(why, change) -> None:
    what = objective("mlp", None, "float32")
    with pytest.raises(ModelError, match=f"replicas of model mlp cannot be stacked: {why}"), pinned(0, threads=1):
        check_stackable(Faulty(what, COUNT, change), examples_of(what, 16))
