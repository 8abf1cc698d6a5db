"""Fused steps: a product of matrices that is subtracted as it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from storage.errors import UsageError
from storage.values.tensors import views
from tasks.algorithms.table import build_algorithm
from tasks.data.examples import Examples
from tasks.maps.batches import batches
from tasks.maps.local_steps import LocalSteps
from tasks.maps.prox import FedProx
from tasks.maps.stepping import backprop
from tasks.networks.objective import ModelSpec, Objective
from tasks.numerics import pinned
from tasks.user_code import find_code
from tests.tasks.maps.stepping.networks import SOUND, UNSOUND, file_of

FUSED = LocalSteps(steps=9, batch_size=16, lr=0.1, step="fused")


@pytest.fixture(autouse=True)
def fresh() -> None:
    backprop.known_of.cache_clear()


def part(dtype: torch.dtype = torch.float32) -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(50, 1, 4, 4, generator=generator).to(dtype)
    return Examples(inputs, torch.randint(0, 3, (50,), generator=generator))


def objective(model: Any = "mlp", dtype: str = "float32", options: str = "{}") -> Objective:
    return Objective(ModelSpec(model, (1, 4, 4), 3, dtype, 0, options), "cross_entropy")


def directions(
    rule: LocalSteps, what: Objective, dtype: torch.dtype = torch.float32, seeds: Sequence[int] = (0, 1, 2)
) -> list[torch.Tensor]:
    found = []
    for seed in seeds:
        with pinned(seed, threads=1):
            update = rule(what, what.initial(), part(dtype), {}, seed)
        found += [*update.direction.values(), *update.buffers.values(), torch.tensor(update.metrics["train_loss"])]
    return found


def test_a_layer_is_updated_by_one_product_by_hand() -> None:
    """784-256-10 in small: the weights' gradients are d^T x, the biases' sums; all in the order of the step."""
    what, examples = objective(options='{"hidden": 8}'), part()
    update = FUSED(what, what.initial(), examples, {}, 5)
    named = {name: v.clone() for name, v in views(what.layout.params, what.initial().params).items()}
    w1, b1, w2, b2 = (named[name] for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"))
    for batch in batches(examples, 16, 9, 5):
        x = batch.inputs.flatten(1)
        hidden = torch.addmm(b1, x, w1.t()).relu()
        logits = torch.addmm(b2, hidden, w2.t())
        with torch.enable_grad():
            leaf = logits.requires_grad_()
            (d2,) = torch.autograd.grad(functional.cross_entropy(leaf, batch.targets), leaf)
        d1 = (d2 @ w2) * (hidden > 0)
        w1.addmm_(d1.t(), x, alpha=-0.1)
        b1.sub_(d1.sum(0), alpha=0.1)
        w2.addmm_(d2.t(), hidden, alpha=-0.1)
        b2.sub_(d2.sum(0), alpha=0.1)
    start = views(what.layout.params, what.initial().params)
    found = views(what.layout.params, update.direction)
    for name, arrived in (("fc1.weight", w1), ("fc1.bias", b1), ("fc2.weight", w2), ("fc2.bias", b2)):
        assert torch.equal(found[name], start[name] - arrived)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("model", "options"), [("mlp", '{"dropout": 0.3}'), ("cnn", "{}"), ("logistic", "{}")])
def test_fused_steps_are_near_exact_ones(model: str, options: str, dtype: str) -> None:
    what, kind = objective(model, dtype, options), getattr(torch, dtype)
    exact = directions(replace(FUSED, step="exact"), what, kind)
    for one, other in zip(directions(FUSED, what, kind), exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_they_have_the_same_bits_in_a_process_that_took_some_and_in_one_that_took_none(model: str) -> None:
    what = objective(model)
    first, again = directions(FUSED, what), directions(FUSED, what)
    backprop.known_of.cache_clear()
    alone = directions(FUSED, what, seeds=(2,))
    assert all(map(torch.equal, first, again))
    assert all(map(torch.equal, first[-len(alone) :], alone))


def test_the_weights_of_an_exact_map_are_others() -> None:
    what = Objective(ModelSpec("mlp", (300,), 10, "float32", 0), "cross_entropy")
    generator = torch.Generator().manual_seed(1)
    examples = Examples(
        torch.randn(64, 300, generator=generator), torch.randint(0, 10, (64,), generator=generator)
    )
    one, other = (
        replace(FUSED, step=step)(what, what.initial(), examples, {}, 0).direction["float32"]
        for step in ("exact", "fused")
    )
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", SOUND)
def test_a_network_of_the_users_is_near_its_exact_steps(name: str, own) -> None:
    what = objective(find_code(f"{own(file_of(SOUND[name]))}:Net"))
    exact = directions(replace(FUSED, step="exact"), what)
    for one, other in zip(directions(FUSED, what), exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["counter", "branch", "clock"])
def test_what_cannot_be_replayed_is_refused(name: str, own) -> None:
    what = objective(find_code(f"{own(file_of(UNSOUND[name][1]))}:Net"))
    for _ in range(2):
        with pytest.raises(UsageError, match="fused steps are replays, and these stay eager: "):
            FUSED(what, what.initial(), part(), {}, 0)


@pytest.mark.parametrize(
    "fields", [{"clip_norm": 1.0}, {"optimizer": "AdamW"}, {"options": (("weight_decay", 0.1),)}]
)
def test_fused_steps_are_those_of_plain_sgd(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="fused steps are those of plain SGD"):
        replace(FUSED, **fields)


def test_they_have_no_further_terms() -> None:
    what = objective()
    with pytest.raises(UsageError, match="fused steps have no further terms"):
        FedProx(FUSED, mu=0.1)(what, what.initial(), part(), {}, 0)


def test_the_step_is_an_option_of_averaging() -> None:
    assert build_algorithm("fed_avg", {"step": "fused"}).map.step == "fused"
    assert build_algorithm("fed_avg", {}).map.step == "exact"
    for name in ("fed_prox", "scaffold", "sync_sgd"):
        with pytest.raises(UsageError, match="step"):
            build_algorithm(name, {"step": "fused"})
