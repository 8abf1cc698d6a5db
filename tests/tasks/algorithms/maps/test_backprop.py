"""A map takes the steps of a plain loop in torch, whatever the network does and its process did before."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from torch import nn

from roundweave import Examples, LocalSteps, Map, Objective, Update
from roundweave.tasks.algorithms.maps.backprop import backprop
from roundweave.tasks.algorithms.maps.gradient import Downpour
from roundweave.tasks.numerics.pinning import pinned
from tests.tasks.algorithms.maps.networks import PURE, distance, examples, file_of, looped, objective, objective_of

STEPS, BATCH, LR, SEED = 20, 6, 0.1, 5
LOCAL = LocalSteps(local_steps=STEPS, batch_size=BATCH, lr=LR)


def mapped(what: Objective, local: LocalSteps = LOCAL, seed: int = SEED) -> Update:
    with pinned(seed, threads=1):
        return local(what, what.initial(), examples(40), {}, seed)


@pytest.mark.parametrize("name", PURE)
def test_a_map_takes_the_steps_of_a_plain_loop_whatever_its_process_did_before(own, name) -> None:
    """Between, it does many steps by a rate so small that nothing diverges."""
    what = objective_of(own(file_of(name)))
    mine = mapped(what).direction["float32"]
    start = torch.cat([p.detach().flatten() for p in what.model.build().parameters() if p.requires_grad])
    with pinned(SEED, threads=1):
        network = looped(what, examples(40), lambda p: torch.optim.SGD(p, lr=LR), STEPS, BATCH, [SEED])
    loop = start - torch.cat([p.detach().flatten() for p in network.parameters() if p.requires_grad])
    if name == "norm of weights":  # a product of a vector is added up by where it lies in memory
        torch.testing.assert_close(mine, loop)
    else:
        assert torch.equal(mine, loop)
    mapped(what, LocalSteps(local_steps=50, batch_size=4, lr=1e-6), seed=9)
    assert torch.equal(mapped(what).direction["float32"], mine)


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


LABELLED: dict[str, Map] = {
    "local steps": LOCAL,
    "pieces": replace(LOCAL, batch_size=3, accumulate=2),
    "downpour": Downpour(push_every=STEPS, batch_size=BATCH, lr=LR),
}


@pytest.mark.parametrize("name", [*LABELLED, "stacked"])
def test_a_batch_without_labels_takes_no_part_in_the_loss_of_a_round(name) -> None:
    """A plain loop prints NaN for it, and takes a step along zeros."""
    what, part, seen = objective(dtype="float64"), examples(40, "float64"), list[float]()
    part.targets[:32] = -100
    network = looped(
        what,
        part,
        lambda p: torch.optim.SGD(p, lr=LR),
        STEPS,
        BATCH,
        [SEED],
        seen=lambda _, loss: seen.append(loss),
    )
    there = [loss for loss in seen if math.isfinite(loss)]
    assert 0 < len(there) < STEPS
    start = what.initial()
    if name == "stacked":
        mapper = pytest.importorskip("roundweave.flows.plugins.stacked.replicas").StackedMapper(at_once=2)
        (update,) = mapper(LOCAL, what, start, [(part, {}, SEED)])
    else:
        update = LABELLED[name](what, start, part, {}, SEED)
    assert update.metrics["train_loss"] == pytest.approx(statistics.fmean(there), rel=1e-12)
    walked = {"float64": update.direction["float64"] * (LR if name == "downpour" else 1)}
    assert distance(what, start.params, walked, network) < 1e-12
