"""Backprop over one partition, against torch's own loops."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State
from roundweave.storage.values.tensors import views
from roundweave.tasks.algorithms.applies.optimizers import Adam, Sgd
from roundweave.tasks.algorithms.maps.backprop import batches
from roundweave.tasks.algorithms.maps.federated import FedProx
from roundweave.tasks.algorithms.maps.gradient import Gradient
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.compute.compute import Compute
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned
from tests.tasks.algorithms.maps.networks import examples, objective
from tests.tasks.sampled import sampled

STEPS = LocalSteps(local_steps=3)


def trained(what: Objective, state: State, part: Examples, optimizer, steps: int, size: int | None, clip=None):
    """Local training in plain torch; gives the network."""
    network = what.network(state)
    optimizer = optimizer([p for p in network.parameters() if p.requires_grad])
    for batch in batches(part, size, steps, seed=7):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch.inputs), batch.targets).backward()
        if clip:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
    return network


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
    from roundweave.tasks.own_code.code import find_code

    source = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = torch.nn.Linear(16, 3), torch.nn.Linear(2, 2)
    def forward(self, inputs):
        return self.used(inputs.flatten(1))
"""
    what = Objective(ModelSpec(find_code(f"{own(source)}:Net"), (1, 4, 4), 3, "float32", 0), "cross_entropy")
    for algorithm in (Gradient(), LocalSteps(local_steps=2)):
        found = views(what.layout.params, algorithm(what, what.initial(), examples(), {}, 0).direction)
        assert not found["idle.weight"].any()
        assert found["used.weight"].any()


# Local steps.


@pytest.mark.parametrize(
    ("model", "dtype"), sampled(4, ["logistic", "mlp", "cnn"], ["float32", "float64", "bfloat16"])
)
def test_plain_sgd_has_the_bits_of_torch(model: str, dtype: str) -> None:
    what, part = objective(model, dtype), examples(dtype=dtype)
    state = what.initial()
    with pinned(0, threads=1):
        update = LocalSteps(local_steps=6, batch_size=16, lr=0.1)(what, state, part, {}, 7)
        network = trained(what, state, part, lambda p: torch.optim.SGD(p, lr=0.1), 6, 16)
    found = views(what.layout.params, update.direction)
    start = views(what.layout.params, state.params)
    for name, parameter in network.named_parameters():
        assert torch.equal(found[name], start[name] - parameter.detach())
    buffers = views(what.layout.buffers, update.buffers)
    assert all(torch.equal(buffers[name], buffer) for name, buffer in network.named_buffers())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("SGD", {"weight_decay": 0.1}),
        ("AdamW", {}),
        ("Adagrad", {"eps": 1e-3}),
    ],
)
def test_other_optimizers_are_torchs_with_their_options(name: str, options: dict[str, object]) -> None:
    what, part = objective(), examples()
    state = what.initial()
    local = LocalSteps(local_steps=5, batch_size=16, optimizer=name, lr=0.05, optimizer_options=options)
    update = local(what, state, part, {}, 7)
    network = trained(what, state, part, lambda p: getattr(torch.optim, name)(p, lr=0.05, **options), 5, 16)
    arrived = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    assert torch.equal(update.direction["float32"], state.params["float32"] - arrived)


def test_the_direction_is_start_minus_arrived_by_hand(own) -> None:
    """One weight, loss w x: from 2 with lr 0.5 and inputs of 4, each step subtracts 2."""
    from roundweave.tasks.own_code.code import find_code

    source = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))
    def forward(self, inputs):
        return self.weight * inputs
def loss(outputs, targets):
    return outputs.mean()
"""
    path = own(source)
    what = Objective(ModelSpec(find_code(f"{path}:Net"), (1,), 1, "float32", 0), find_code(f"{path}:loss"))
    part = Examples(torch.full((3, 1), 4.0), torch.zeros(3))
    update = LocalSteps(local_steps=2, batch_size=None, lr=0.5)(what, what.initial(), part, {}, 0)
    assert update.direction["float32"].tolist() == [4.0]
    # The losses were 2 x 4 and 0 x 4.
    assert (update.metrics, update.weight) == ({"train_loss": 4.0}, 3)


def test_gradients_are_clipped_to_the_norm() -> None:
    what, part = objective(), examples()
    state = what.initial()
    one = LocalSteps(local_steps=1, batch_size=None, lr=1.0)(what, state, part, {}, 0).direction["float32"]
    norm = one.norm().item()
    clipped = LocalSteps(local_steps=1, batch_size=None, lr=1.0, clip_norm=norm / 4)(what, state, part, {}, 0)
    torch.testing.assert_close(clipped.direction["float32"], one / 4)
    loose = LocalSteps(local_steps=1, batch_size=None, lr=1.0, clip_norm=norm * 4)(what, state, part, {}, 0)
    torch.testing.assert_close(loose.direction["float32"], one)


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


@pytest.mark.parametrize(
    ("algorithm", "model"),
    sampled(
        5, [Gradient(), LocalSteps(local_steps=3), LocalSteps(local_steps=3, optimizer="Adam")], ["mlp", "cnn"]
    ),
)
def test_a_map_changes_neither_state_nor_examples_and_repeats_itself(algorithm, model: str) -> None:
    what, part = objective(model), examples()
    state = what.initial()
    before = pickle.dumps((state, part))
    first, second = (algorithm(what, state, part, {}, 5) for _ in range(2))
    assert pickle.dumps((state, part)) == before
    assert torch.equal(first.direction["float32"], second.direction["float32"])
    assert torch.equal(what.initial().params["float32"], state.params["float32"])


def test_another_seed_walks_in_another_order() -> None:
    what, part = objective(), examples()
    one, two = (LocalSteps(local_steps=2, batch_size=8)(what, what.initial(), part, {}, seed) for seed in (1, 2))
    assert not torch.equal(one.direction["float32"], two.direction["float32"])


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_the_rate_is_that_of_the_round_about_to_be_made(optimizer: str) -> None:
    what, part = objective(), examples()
    state = replace(what.initial(), round=2)
    falling = LocalSteps(local_steps=2, optimizer=optimizer, lr=0.4, lr_schedule="step:2:0.25")
    found = falling(what, state, part, {}, 7)
    wanted = LocalSteps(local_steps=2, optimizer=optimizer, lr=0.1)(what, state, part, {}, 7)
    assert torch.equal(found.direction["float32"], wanted.direction["float32"])


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_term_is_added_to_each_gradient(optimizer: str) -> None:
    """A term of w is the gradient of |w|^2 / 2 added to the loss."""
    what, part = objective(), examples()
    state = what.initial()
    local = LocalSteps(local_steps=5, batch_size=16, optimizer=optimizer, lr=0.05, clip_norm=3.0)
    found = local.walk(what, state, part, 7, lambda name, parameter: parameter)
    network = what.network(state)
    stepper = getattr(torch.optim, optimizer)(network.parameters(), lr=0.05)
    for batch in batches(part, 16, 5, seed=7):
        stepper.zero_grad()
        squares = sum(p.square().sum() for p in network.parameters())
        (nn.functional.cross_entropy(network(batch.inputs), batch.targets) + squares / 2).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 3.0)
        stepper.step()
    arrived = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    torch.testing.assert_close(found.direction["float32"], state.params["float32"] - arrived, rtol=1e-4, atol=1e-6)


# What cannot be meant.


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"local_epochs": 1}, "give local_steps or local_epochs, not both"),
        ({"optimizer": "Sgdd"}, "torch.optim has no optimizer 'Sgdd'; there is SGD"),
        *(
            ({"optimizer": name}, f"torch.optim has no optimizer '{name}'")
            for name in ("lr_scheduler", "Optimizer")
        ),
        ({"optimizer": "_functional"}, "torch.optim has no optimizer '_functional'; .*AdamW"),
        *(({"optimizer": name}, "LBFGS computes the loss several times in a step") for name in ("LBFGS", "lbfgs")),
        ({"optimizer_options": {"momentun": 0.9}}, "optimizer SGD: .*unexpected keyword argument 'momentun'"),
        ({"optimizer_options": {"nesterov": True}}, "optimizer SGD: .*Nesterov momentum requires a momentum"),
        ({"optimizer_options": {"momentum": -1.0}}, "optimizer SGD: .*Invalid momentum value: -1.0"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(fields, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        LocalSteps(local_steps=1, **fields)


@pytest.mark.parametrize(("given", "name"), [("adamw", "AdamW"), ("RMSPROP", "RMSprop"), ("sgd", "SGD")])
def test_optimizers_are_understood_in_any_case(given: str, name: str) -> None:
    assert LocalSteps(local_steps=1, optimizer=given) == LocalSteps(local_steps=1, optimizer=name)


@pytest.mark.parametrize("kind", [LocalSteps, FedProx])
@pytest.mark.parametrize(("name", "reason"), [("Muon", "2D"), ("SparseAdam", "dense gradients")])
def test_an_optimizer_that_cannot_train_the_network_is_refused_before_round_1(kind, name, reason: str) -> None:
    """Muon is for matrices, and this network has biases; SparseAdam is for sparse gradients."""
    with pytest.raises(UsageError, match=f"optimizer {name}.*{reason}"):
        kind(local_steps=1, optimizer=name).bound(objective(), None)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LocalSteps, {"lr": -1.0}),
        (LocalSteps, {"local_epochs": 0}),
        (LocalSteps, {"clip_norm": -1.0}),
        (LocalSteps, {"lr": "fast"}),
        (Gradient, {"batch_size": 0}),
        (Sgd, {"lr": 0.0}),
        (Adam, {"beta1": 1.0}),
    ],
)
def test_a_part_holds_the_bounds_of_its_options_however_it_is_made(kind, options) -> None:
    ((name, value),) = options.items()
    with pytest.raises(UsageError, match=f"^{name} = {value!r}: Input should be "):
        kind(**options)


# Batches.


def numbered(count: int) -> Examples:
    return Examples(torch.arange(count).reshape(-1, 1), torch.arange(count))


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 3), st.integers(0, 2**63 - 1))
@settings(deadline=None, max_examples=25)
def test_each_pass_visits_every_example_once(count: int, size: int, passes: int, seed: int) -> None:
    each = -(-count // min(size, count))
    found = [batch.targets.tolist() for batch in batches(numbered(count), size, passes * each, seed)]
    for start in range(0, len(found), each):
        walk = found[start : start + each]
        assert sorted(row for rows in walk for row in rows) == list(range(count))
        assert [len(batch) for batch in walk[:-1]] == [min(size, count)] * (each - 1)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 20))
@settings(deadline=None, max_examples=25)
def test_as_many_batches_come_as_were_asked_for(count: int, size: int, steps: int) -> None:
    found = [
        (batch.inputs[:, 0].tolist(), batch.targets.tolist()) for batch in batches(numbered(count), size, steps, 0)
    ]
    assert len(found) == steps
    assert all(inputs == targets for inputs, targets in found)


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


@pytest.mark.parametrize("count", [1, 2])
def test_the_training_loss_of_float64_is_summed_in_float64(count: int) -> None:
    """Steps of this learning rate move nothing, so that each has the loss of all examples at the start."""
    what, part = objective(dtype="float64"), examples(dtype="float64")
    wanted = what.loss_of(what.network(what.initial()), part.inputs, part.targets).item()
    local = Compute(stacked=count).mapper(LocalSteps(local_steps=3, batch_size=len(part), lr=1e-300))
    for update in local(what, what.initial(), [(part, {}, 7)] * count):
        assert update.metrics["train_loss"] == pytest.approx(wanted, rel=1e-13)
