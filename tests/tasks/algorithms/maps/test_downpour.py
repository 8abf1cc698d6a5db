"""A replica of Downpour SGD, against torch's own loop."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Vectors, views
from roundweave.tasks.algorithms.maps.backprop import batches
from roundweave.tasks.algorithms.maps.gradient import Downpour, Gradient
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.numerics.pinning import pinned
from tests.tasks.algorithms.maps.networks import examples, objective
from tests.tasks.sampled import sampled


def going_on(steps: int, size: int | None, lr: float, **fields: str) -> Downpour:
    """One that pushes after so many steps, and goes on from where it is."""
    return Downpour(push_every=steps, fetch_every=2 * steps, batch_size=size, lr=lr, **fields)


def mapped(rule: Downpour, what: Objective, carry: Mapping[str, Vectors] | None = None, seed: int = 7) -> Update:
    with pinned(0, threads=1):
        return rule(what, what.initial(), examples(dtype=what.model.dtype), carry or {}, seed)


@pytest.mark.parametrize(
    ("model", "dtype"), sampled(4, ["logistic", "mlp", "cnn"], ["float32", "float64", "bfloat16"])
)
def test_it_pushes_the_sum_of_the_gradients_of_plain_sgd(model: str, dtype: str) -> None:
    what = objective(model, dtype)
    found = mapped(going_on(4, 16, 0.2), what)
    network = what.network(what.initial())
    sums = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    losses, optimizer = [], torch.optim.SGD(network.parameters(), lr=0.2)
    with pinned(0, threads=1):
        for batch in batches(examples(dtype=dtype), 16, 4, seed=7):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(batch.inputs), batch.targets)
            loss.backward()
            for name, parameter in network.named_parameters():
                sums[name] += parameter.grad
            optimizer.step()
            losses.append(loss.item())
    pushed, replica = (views(what.layout.params, vectors) for vectors in (found.direction, found.carry["replica"]))
    buffers = views(what.layout.buffers, found.buffers)
    assert all(torch.equal(pushed[name], total) for name, total in sums.items())
    assert all(torch.equal(replica[name], p) for name, p in network.named_parameters())
    assert all(torch.equal(buffers[name], b) for name, b in network.named_buffers())
    assert found.metrics["train_loss"] == pytest.approx(sum(losses) / 4)
    # 50 examples in batches of 16: the fourth has the two that are left.
    assert found.weight == 50


def test_one_step_is_one_gradient() -> None:
    what = objective()
    one, gradient = mapped(Downpour(batch_size=16), what), Gradient(16)(what, what.initial(), examples(), {}, 7)
    assert torch.equal(one.direction["float32"], gradient.direction["float32"])
    assert (one.weight, one.carry) == (16, {})


def test_the_sum_times_its_rate_is_how_far_local_steps_go() -> None:
    what = objective(dtype="float64")
    pushed = mapped(Downpour(push_every=5, batch_size=16, lr=0.2), what).direction["float64"]
    part = examples(dtype="float64")
    moved = LocalSteps(local_steps=5, batch_size=16, lr=0.2)(what, what.initial(), part, {}, 7).direction[
        "float64"
    ]
    torch.testing.assert_close(0.2 * pushed, moved, rtol=0, atol=1e-12)


def test_a_replica_goes_on_from_where_it_is() -> None:
    """Two pushes of a replica are one of as many steps, where its batches are all of the partition."""
    what = objective(dtype="float64")
    first = mapped(going_on(2, None, 0.3), what)
    second = mapped(going_on(3, None, 0.3), what, first.carry)
    whole = mapped(going_on(5, None, 0.3), what)
    assert torch.equal(second.carry["replica"]["float64"], whole.carry["replica"]["float64"])
    total = first.direction["float64"] + second.direction["float64"]
    torch.testing.assert_close(total, whole.direction["float64"], rtol=0, atol=1e-12)


def test_the_rate_follows_the_rounds_of_the_state() -> None:
    what = objective()
    rule = going_on(2, 16, 0.2, lr_schedule="step:10:0.5")
    later = State(what.initial().params, what.initial().buffers, what.initial().frozen, round=10)
    found = rule(what, later, examples(), {}, 7).carry["replica"]["float32"]
    assert torch.equal(found, mapped(going_on(2, 16, 0.1), what).carry["replica"]["float32"])


def test_nothing_is_changed_of_what_it_is_given() -> None:
    what = objective()
    state, carry = what.initial(), mapped(going_on(2, 32, 0.1), what).carry
    before = [state.params["float32"].clone(), carry["replica"]["float32"].clone()]
    going_on(2, 32, 0.1)(what, state, examples(), carry, 7)
    assert torch.equal(state.params["float32"], before[0])
    assert torch.equal(carry["replica"]["float32"], before[1])
