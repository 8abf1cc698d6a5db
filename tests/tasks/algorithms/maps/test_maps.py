"""Backprop over one partition, against torch's own loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from roundweave import Adam, Examples, LocalSteps, UsageError, batches, views
from roundweave.storage.errors import DataError
from roundweave.tasks.algorithms.maps.gradient import Downpour, Gradient
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.numerics.pinning import pinned
from tests.rows import but_first
from tests.tasks.algorithms.maps.networks import distance, examples, file_of, looped, objective, objective_of

WITH_BUFFERS = ("cnn", "float64")
MODELS_AND_TYPES = but_first(
    [("mlp", "float32"), WITH_BUFFERS, ("logistic", "bfloat16")],
    [("mlp", "bfloat16"), ("cnn", "float32"), ("cnn", "bfloat16")],
)

# Gradient.


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    what, part = objective(), examples()
    state = what.initial()
    update = Gradient()(what, state, part, {}, 0)
    network = what.network(state)
    loss = nn.functional.cross_entropy(network(part.inputs), part.targets)
    loss.backward()
    found = views(what.layout.params, update.direction)
    assert all(torch.equal(found[name], parameter.grad) for name, parameter in network.named_parameters())
    assert (update.weight, update.metrics) == (50, {"train_loss": loss.item()})


def test_the_gradient_of_one_batch_weighs_as_its_partition_does() -> None:
    """So one example counts as any other, of a partition of 30 as of one of 3,000."""
    what, part = objective(), examples()
    batch = next(batches(part, 8, 1, seed=3))
    wanted = Gradient()(what, what.initial(), batch, {}, 0)
    found = Gradient(batch_size=8)(what, what.initial(), part, {}, 3)
    assert torch.equal(found.direction["float32"], wanted.direction["float32"])
    assert found.weight == 50


def test_a_parameter_that_is_not_used_has_a_gradient_of_zero(own) -> None:
    what = objective_of(own(file_of("one gradient")))
    found = views(what.layout.params, Gradient()(what, what.initial(), examples(), {}, 0).direction)
    assert not found["first.weight"].any()
    assert found["last.weight"].any()


# Local steps.


@pytest.mark.parametrize(("model", "dtype"), MODELS_AND_TYPES)
def test_plain_sgd_has_the_bits_of_torch(model: str, dtype: str) -> None:
    what, part = objective(model, dtype), examples(dtype=dtype)
    state = what.initial()
    with pinned(0, threads=1):
        update = LocalSteps(local_steps=6, batch_size=16, lr=0.1)(what, state, part, {}, 7)
        network = looped(what, part, lambda p: torch.optim.SGD(p, lr=0.1), 6)
    found, start = (views(what.layout.params, each) for each in (update.direction, state.params))
    for name, parameter in network.named_parameters():
        assert torch.equal(found[name], start[name] - parameter.detach())
    buffers = views(what.layout.buffers, update.buffers)
    assert all(torch.equal(buffers[name], buffer) for name, buffer in network.named_buffers())


@pytest.mark.parametrize(
    ("name", "options", "clip"),
    [
        ("SGD", {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True}, None),
        ("SGD", {}, 0.1),
        ("AdamW", {}, 3.0),
    ],
)
def test_other_optimizers_and_clipped_gradients_are_torchs(name: str, options: dict[str, Any], clip) -> None:
    what, part = objective(), examples()
    state = what.initial()
    made = {"optimizer": name, "lr": 0.05, "optimizer_options": options, "clip_norm": clip}
    update = LocalSteps(local_steps=4, batch_size=16, **made)(what, state, part, {}, 7)
    network = looped(what, part, lambda p: getattr(torch.optim, name)(p, lr=0.05, **options), clip=clip)
    assert distance(what, state.params, update.direction, network) < 1e-7


@pytest.mark.parametrize(
    ("count", "size", "steps"), [(50, 16, 8), (48, 16, 6), (50, None, 2), (50, 80, 2), (50, 1, 100)]
)
def test_epochs_are_so_many_steps(count: int, size: int | None, steps: int) -> None:
    what, part = objective("logistic"), examples(count)
    passes, walked = (
        LocalSteps(**how, batch_size=size)(what, what.initial(), part, {}, 7)
        for how in ({"local_epochs": 2}, {"local_steps": steps})
    )
    assert torch.equal(passes.direction["float32"], walked.direction["float32"])
    assert passes.metrics == walked.metrics
    assert passes.weight == count


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_the_rate_is_that_of_the_round_about_to_be_made(optimizer: str) -> None:
    what, part = objective(), examples()
    state = replace(what.initial(), round=2)
    falling = LocalSteps(local_steps=2, optimizer=optimizer, lr=0.4, lr_schedule="step:2:0.25")
    found = falling(what, state, part, {}, 7)
    wanted = LocalSteps(local_steps=2, optimizer=optimizer, lr=0.1)(what, state, part, {}, 7)
    assert torch.equal(found.direction["float32"], wanted.direction["float32"])


def test_a_term_is_added_to_each_gradient_before_it_is_clipped() -> None:
    """A term of w is the gradient of |w|^2 / 2 added to the loss, as a weight decay of 1 is."""
    what, part = objective(), examples()
    state = what.initial()
    local = LocalSteps(local_steps=4, batch_size=16, lr=0.05)
    found = local.walk(what, state, part, 7, lambda name, parameter: parameter)
    network = looped(what, part, lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=1.0))
    assert distance(what, state.params, found.direction, network) < 1e-6
    short = replace(local, local_steps=1, lr=1.0, clip_norm=0.1)
    clipped = short.walk(what, state, part, 7, lambda name, parameter: parameter).direction["float32"]
    assert clipped.norm().item() == pytest.approx(0.1, rel=1e-4)


def test_partitions_begin_round_1_on_their_own_and_later_ones_together() -> None:
    """With steps too small to matter, what arrives first is each partition's own initial network."""
    what, part = objective(), examples()
    local, state = LocalSteps(local_steps=1, lr=1e-30, init="per-partition"), what.initial()
    first, other = (local(what, state, part, {}, seed).direction["float32"] for seed in (1, 2))
    assert min(first.abs().max(), (first - other).abs().max()) > 0.01
    assert not local(what, replace(state, round=1), part, {}, 1).direction["float32"].any()


@pytest.mark.parametrize("count", [1, 2])
def test_the_training_loss_of_float64_is_summed_in_float64(count: int) -> None:
    """Steps of this learning rate move nothing, so that each has the loss of all examples at the start."""
    what, part = objective(dtype="float64"), examples(dtype="float64")
    wanted = what.loss_of(what.network(what.initial()), part.inputs, part.targets).item()
    local, mapper = LocalSteps(local_steps=3, batch_size=len(part), lr=1e-300), Mapper()
    if count > 1:
        mapper = pytest.importorskip("roundweave.flows.plugins.stacked.replicas").StackedMapper(at_once=count)
    for update in mapper(local, what, what.initial(), [(part, {}, 7)] * count):
        assert update.metrics["train_loss"] == pytest.approx(wanted, rel=1e-13)


NAMES = [("adamw", "AdamW"), ("RMSPROP", "RMSprop"), ("torch.optim.SGD", "SGD"), (torch.optim.AdamW, "AdamW")]


@pytest.mark.parametrize(("given", "name"), NAMES)
def test_optimizers_are_understood_in_any_case(given: str, name: str) -> None:
    assert LocalSteps(local_steps=1, optimizer=given) == LocalSteps(local_steps=1, optimizer=name)


@pytest.mark.parametrize(
    ("kind", "name", "value"), [(LocalSteps, "lr", "fast"), (Gradient, "batch_size", 0), (Adam, "beta1", 1.0)]
)
def test_a_part_holds_the_bounds_of_its_options_however_it_is_made(kind, name, value) -> None:
    with pytest.raises(UsageError, match=f"^{name} = {value!r}: Input should be "):
        kind(**{name: value})


# Downpour.


def going_on(steps: int, size: int | None, lr: float, **fields: str) -> Downpour:
    """One that pushes after so many steps, and goes on from where it is."""
    return Downpour(push_every=steps, fetch_every=2 * steps, batch_size=size, lr=lr, **fields)


@pytest.mark.parametrize(("model", "dtype"), MODELS_AND_TYPES)
def test_a_replica_pushes_the_sum_of_the_gradients_of_plain_sgd(model: str, dtype: str) -> None:
    what, part = objective(model, dtype), examples(dtype=dtype)
    sums = {name: torch.zeros_like(p) for name, p in what.model.build().named_parameters()}
    losses = list[float]()

    def seen(network: nn.Module, loss: float) -> None:
        losses.append(loss)
        for name, parameter in network.named_parameters():
            sums[name] += parameter.grad

    with pinned(0, threads=1):
        found = going_on(4, 16, 0.2)(what, what.initial(), part, {}, 7)
        network = looped(what, part, lambda p: torch.optim.SGD(p, lr=0.2), seen=seen)
    pushed, replica = (views(what.layout.params, vectors) for vectors in (found.direction, found.carry["replica"]))
    buffers = views(what.layout.buffers, found.buffers)
    assert all(torch.equal(pushed[name], total) for name, total in sums.items())
    assert all(torch.equal(replica[name], p) for name, p in network.named_parameters())
    assert all(torch.equal(buffers[name], b) for name, b in network.named_buffers())
    assert found.metrics["train_loss"] == pytest.approx(sum(losses) / 4)
    # 50 examples in batches of 16: the fourth has the two that are left.
    assert found.weight == 50


def test_a_replica_of_one_step_pushes_a_gradient() -> None:
    what = objective()
    maps = Downpour(batch_size=16), Gradient(16)
    one, gradient = (map(what, what.initial(), examples(), {}, 7) for map in maps)
    assert torch.equal(one.direction["float32"], gradient.direction["float32"])
    assert (one.weight, one.carry) == (16, {})


def test_a_replica_goes_on_from_where_it_is_by_the_rate_of_its_round() -> None:
    """Two pushes of a replica are one of as many steps, where its batches are all of the partition."""
    what, part = objective(dtype="float64"), examples(dtype="float64")
    state = what.initial()
    first = going_on(2, None, 0.3)(what, state, part, {}, 7)
    later = replace(state, round=10)
    second = going_on(3, None, 0.6, lr_schedule="step:10:0.5")(what, later, part, first.carry, 7)
    whole = going_on(5, None, 0.3)(what, state, part, {}, 7)
    assert torch.equal(second.carry["replica"]["float64"], whole.carry["replica"]["float64"])
    total = first.direction["float64"] + second.direction["float64"]
    torch.testing.assert_close(total, whole.direction["float64"], rtol=0, atol=1e-12)


# Batches.


def numbered(count: int) -> Examples:
    return Examples(torch.arange(count).reshape(-1, 1), torch.arange(count))


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 3), st.integers(0, 2**63 - 1))
@settings(deadline=None, max_examples=25)
def test_each_pass_visits_every_example_once(count: int, size: int, passes: int, seed: int) -> None:
    each = -(-count // min(size, count))
    walked = batches(numbered(count), size, passes * each, seed)
    found = [(batch.inputs[:, 0].tolist(), batch.targets.tolist()) for batch in walked]
    assert len(found) == passes * each
    assert all(inputs == targets for inputs, targets in found)
    for start in range(0, len(found), each):
        walk = [targets for _, targets in found[start : start + each]]
        assert sorted(row for rows in walk for row in rows) == list(range(count))
        assert [len(batch) for batch in walk[:-1]] == [min(size, count)] * (each - 1)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**63 - 1))
@settings(deadline=None, max_examples=25)
def test_a_pass_without_its_last_batch_has_the_first_rows_of_its_permutation(
    count: int, size: int, passes: int, together: int, seed: int
) -> None:
    count, order = max(count, size), torch.Generator().manual_seed(seed)
    used = count // size * size
    steps = passes * -(-used // (together * size))
    found = [batch.targets.tolist() for batch in batches(numbered(count), together * size, steps, seed, size)]
    every = [range(count)] * passes if used == count <= together * size else None
    every = every or [torch.randperm(count, generator=order).tolist() for _ in range(passes)]
    walked = [row for rows in every for row in [*rows][:used]]
    assert [row for batch in found for row in batch] == walked
    assert all(len(batch) % size == 0 for batch in found)


def test_a_partition_that_is_less_than_a_batch_cannot_drop_it() -> None:
    local = LocalSteps(batch_size=8, drop_last=True, local_epochs=2)
    assert [local.count(examples) for examples in (8, 33)] == [2, 8]
    with pytest.raises(DataError, match="a partition of 7 examples has less than one batch of 8, which drop_last"):
        local.count(7)


def test_the_order_depends_on_the_seed_only() -> None:
    def order(seed: int) -> list[list[int]]:
        return [batch.targets.tolist() for batch in batches(numbered(20), 6, 8, seed)]

    first = order(1)
    torch.manual_seed(99)
    torch.rand(5)
    assert order(1) == first != order(2)
    assert first[:4] != first[4:]


def test_without_a_size_the_partition_is_the_batch() -> None:
    part = numbered(5)
    assert all(batch is part for batch in batches(part, None, 3, 0))
