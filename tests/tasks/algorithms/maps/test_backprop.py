"""A map takes the steps of a plain loop in torch, whatever the network does and its process did before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundweave.storage.values.state import Update
from roundweave.tasks.algorithms.maps.backprop import backprop, batches
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import find_code
from tests.tasks.algorithms.maps.networks import PURE, examples, file_of

STEPS, BATCH, LR, SEED = 20, 6, 0.1, 5
LOCAL = LocalSteps(local_steps=STEPS, batch_size=BATCH, lr=LR)


def network_of(own, body: str) -> Objective:
    return Objective(
        ModelSpec(find_code(f"{own(file_of(body))}:Net"), (1, 4, 4), 3, "float32", 0), "cross_entropy"
    )


def mapped(what: Objective, local: LocalSteps = LOCAL, seed: int = SEED) -> Update:
    with pinned(seed, threads=1):
        return local(what, what.initial(), examples(40), {}, seed)


def looped(what: Objective) -> torch.Tensor:
    """Start minus arrived of a loop as one writes it."""
    network = what.model.build()
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    start = [p.detach().clone() for p in network.parameters() if p.requires_grad]
    with pinned(SEED, threads=1):
        for batch in batches(examples(40), BATCH, STEPS, SEED):
            loss = nn.functional.cross_entropy(network(batch.inputs), batch.targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    arrived = [p.detach() for p in network.parameters() if p.requires_grad]
    return torch.cat([(a - b).flatten() for a, b in zip(start, arrived, strict=True)])


@pytest.mark.parametrize("name", PURE)
def test_a_map_takes_the_steps_of_a_plain_loop(own, name) -> None:
    what = network_of(own, PURE[name])
    mine, loop = mapped(what).direction["float32"], looped(what)
    if name == "norm of weights":  # a product of a vector is added up by where it lies in memory
        torch.testing.assert_close(mine, loop)
    else:
        assert torch.equal(mine, loop)


@pytest.mark.parametrize("name", PURE)
def test_what_a_process_did_before_changes_nothing(own, name) -> None:
    """By a small rate, so that nothing diverges in so many steps."""
    what = network_of(own, PURE[name])
    before = mapped(what).direction["float32"]
    mapped(what, LocalSteps(local_steps=150, batch_size=4, lr=1e-6), seed=9)
    assert torch.equal(mapped(what).direction["float32"], before)


def test_a_step_adds_the_gradients_of_the_loss() -> None:
    """y = w x of w = 0 over (1, 2), (3, 6): the loss is 20, its gradient -2 (1 * 2 + 3 * 6) / 2 = -20."""

    class Squares:
        def loss_of(self, network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (network(inputs) - targets).square().mean()

    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    batch = Examples(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [6.0]]))
    losses = [backprop(Squares(), network, batch).item() for _ in range(2)]
    assert (losses, network.weight.grad.item()) == ([20.0, 20.0], -40.0)
