"""Gradient accumulation, and learning rates of single steps, against loops of plain torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from roundweave import LocalSteps, Schedule, State, batches
from roundweave.tasks.algorithms.maps.federated import FedProx, Scaffold, start_loss
from roundweave.tasks.data.examples import IGNORED, Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from tests.tasks.algorithms.maps.networks import distance, examples, objective
from tests.tasks.algorithms.maps.test_optimizer_state import rounds

LOCAL = LocalSteps(local_steps=5, batch_size=8, lr=0.1)


def difference(one: LocalSteps, other: LocalSteps) -> float:
    """The largest difference of directions and losses of two maps of the same partition, of 50 examples."""
    what, part = objective(dtype="float64"), examples(dtype="float64")
    found, wanted = (local(what, what.initial(), part, {}, 7) for local in (one, other))
    loss = abs(found.metrics["train_loss"] - wanted.metrics["train_loss"])
    return max(loss, (found.direction["float64"] - wanted.direction["float64"]).abs().max().item())


@pytest.mark.parametrize("pieces", [2, 7, 100])
@pytest.mark.parametrize("options", [{"optimizer": "AdamW", "lr": 0.01}, {"clip_norm": 0.1, "momentum": 0.9}])
def test_batches_together_are_one_large_batch(pieces: int, options: dict[str, Any]) -> None:
    """50 examples are no multiple of 8, nor of 16 and 56, so that last batches are smaller."""
    small = replace(LOCAL, accumulate=pieces, **options)
    assert difference(small, replace(LOCAL, batch_size=8 * pieces, **options)) < 1e-12


def test_batches_together_are_one_large_batch_of_an_epoch_and_of_other_maps() -> None:
    epochs = replace(LOCAL, local_steps=None, local_epochs=3, batch_size=4, accumulate=4)
    assert epochs.count(50) == 12
    assert difference(epochs, replace(epochs, batch_size=16, accumulate=1)) < 1e-12
    near = FedProx(local_steps=5, batch_size=4, accumulate=4, mu=0.5)
    assert difference(near, replace(near, batch_size=16, accumulate=1)) < 1e-12


def test_places_that_are_left_out_count_in_no_piece() -> None:
    """Padded sequences, of which some are all padding: a mean of the pieces' means would be another number."""
    what = Objective(ModelSpec("gpt", (6,), 9, "float64", seed=0), "cross_entropy")
    inputs = torch.randint(9, (50, 6), generator=torch.Generator().manual_seed(0))
    targets = inputs.masked_fill(torch.arange(6) >= (torch.arange(50) % 7)[:, None], IGNORED)
    part, state = Examples(inputs, targets), what.initial()
    maps = [replace(LOCAL, batch_size=16 // pieces, accumulate=pieces) for pieces in (1, 2, 16)]
    large, *small = (map(what, state, part, {}, 7) for map in maps)
    for update in small:
        assert update.metrics["train_loss"] == pytest.approx(large.metrics["train_loss"], abs=1e-6)
        torch.testing.assert_close(update.direction, large.direction, rtol=0, atol=1e-12)
    network = what.network(state).eval()
    assert start_loss(what, state, part) == pytest.approx(what.loss_of(network, inputs, targets).item(), abs=1e-12)
    many = Examples(inputs.repeat(6, 1), targets.repeat(6, 1))
    assert start_loss(what, state, many) == pytest.approx(start_loss(what, state, part), abs=1e-12)


def test_a_step_of_a_control_variate_accumulates_too() -> None:
    what, part = objective(dtype="float64"), examples(dtype="float64")
    state = replace(what.initial(), memory={"control": {"float64": 0.01 * what.initial().params["float64"]}})
    maps = (Scaffold(local_steps=3, batch_size=4, accumulate=4), Scaffold(local_steps=3, batch_size=16))
    one, other = (map(what, state, part, {}, 7) for map in maps)
    torch.testing.assert_close(one.extras["control"], other.extras["control"], rtol=0, atol=1e-12)


# Learning rates of steps.


@pytest.mark.parametrize("shape", ["cosine:6", "linear:6"])
@pytest.mark.parametrize("warmup", [0, 1, 0.25, 2.5])
def test_steps_of_rounds_have_the_rates_of_as_many_rounds(shape: str, warmup: float) -> None:
    """A run of 6 rounds of 4 steps has the rates that one of 24 rounds would have, with 4 times the warm-up."""
    local = LocalSteps(local_steps=4, lr=0.3, lr_schedule=shape, warmup=warmup, lr_schedule_by="step")
    found = [rate for round in range(7) for rate in local.rates(State({}, round=round), 4)]
    name, count = shape.split(":")
    long = Schedule(f"{name}:{4 * int(count)}", 4 * warmup)
    assert found == pytest.approx([0.3 * long(step + 1) for step in range(28)], rel=1e-12)


def test_rates_by_hand() -> None:
    local = LocalSteps(local_steps=2, lr=1.0, lr_schedule="linear:2", warmup=0.5, lr_schedule_by="step")
    rates = [local.rates(State({}, round=round), 2) for round in (0, 1, 2)]
    assert rates == [[0.5, 0.75], [0.5, 0.25], [0.25, 0.25]]
    falling = replace(local, lr_schedule="step:1:0.5", warmup=0)
    assert [falling.rates(State({}, round=round), 2) for round in (0, 1)] == [[1.0, 1.0], [0.5, 0.5]]
    assert replace(local, lr_schedule_by="round").rates(State({}, round=0), 2) == [1 / 1.5] * 2


def test_a_whole_run_is_a_loop_of_torch_with_its_scheduler() -> None:
    """AdamW with warm-up over 3 steps and a cosine over all 20, its state carried: as people write it in torch."""
    what, part = objective(dtype="float64"), examples(dtype="float64")
    adamw = replace(LOCAL, accumulate=2, lr=0.01, optimizer="AdamW", optimizer_state="carried")
    local = replace(adamw, lr_schedule="cosine:4", warmup=3 / 5, lr_schedule_by="step")
    network = what.network(what.initial())
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    shape = lambda step: min(1, (step + 1) / 4) * (1 + math.cos(math.pi * step / 20)) / 2  # noqa: E731
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
    for number in range(4):
        for batch in batches(part, 16, 5, seed=number):
            for inputs, targets in zip(batch.inputs.split(8), batch.targets.split(8), strict=True):
                loss = nn.functional.cross_entropy(network(inputs), targets)
                (loss * len(inputs) / len(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    params = rounds(local, what, part, 4)[0].params
    assert distance(what, params, {"float64": torch.zeros_like(params["float64"])}, network) < 1e-12
