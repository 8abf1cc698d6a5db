"""Networks whose replicas can be trained side by side, and those that are refused, each by its reason."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

import pytest
import torch

from storage.errors import ModelError
from tasks.compute.stacked.replicas import Stacked, check_stackable
from tasks.numerics import pinned
from tests.tasks.compute.stacked.test_training import objective, part
from tests.tasks.sampled import sampled

COUNT = 8


@pytest.mark.parametrize(
    ("kind", "dtype"),
    sampled(3, ["logistic", "mlp", "gpt", "Convolutions", "Tied", "Frozen", "Idle"], ["float32", "float64"]),
)
def test_sound_networks_pass_and_stay_as_they_are(own, kind, dtype) -> None:
    what = objective(kind, own, dtype)
    before = what.initial()
    with pinned(0, threads=1):
        check_stackable(Stacked(what, COUNT), part(what, 16))
    assert all(torch.equal(vector, before.params[name]) for name, vector in what.initial().params.items())


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("Dropping", "it draws random numbers, as dropout does"),
        ("Playing", "it draws random numbers"),
        ("Normed", "training changes its buffer norm.running_mean, as BatchNorm does"),
        ("Branching", "they fail with RuntimeError: vmap: "),
    ],
)
def test_what_cannot_be_stacked_is_refused_by_its_reason(own, kind, why) -> None:
    what = objective(kind, own, "float32")
    with pytest.raises(ModelError) as error, pinned(0, threads=1):
        check_stackable(Stacked(what, COUNT), part(what, 16))
    assert f"mine.py:{kind} cannot be stacked: {why}" in str(error.value)
    assert "leave stacked at 1" in str(error.value)
    assert "\n" not in str(error.value)


@dataclass(frozen=True)
class Placed(Stacked):
    """A replica's loss depends on its place."""

    def value(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().value(outputs, targets) * torch.linspace(1, 1.0001, self.count)


@dataclass(frozen=True)
class Neighbouring(Stacked):
    """A replica's loss depends on that of its neighbour."""

    def value(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = super().value(outputs, targets)
        return losses * (1 + losses.roll(1).detach() / 1000)


@dataclass(frozen=True)
class Doubled(Stacked):
    """Replicas are independent, and trained in another way than alone."""

    def value(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().value(outputs, targets) * 1.01


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Placed, "a step of one has other bits in another place, or beside others; leave stacked at 1, or try"),
        (Neighbouring, "a step of one has other bits in another place, or beside others"),
        (Doubled, "the gradient of one is another one than alone"),
    ],
)
def test_replicas_that_are_not_as_if_alone_are_refused(kind, why) -> None:
    what = objective("mlp", None, "float32")
    with pytest.raises(ModelError, match=f"replicas of model mlp cannot be stacked: {why}"), pinned(0, threads=1):
        check_stackable(kind(what, COUNT), part(what, 16))


def test_that_other_threads_draw_random_numbers_meanwhile_does_no_harm() -> None:
    what, done = objective("mlp", None, "float32"), threading.Event()

    def draw() -> None:
        while not done.is_set():
            random.random()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        with pinned(0, threads=1):
            check_stackable(Stacked(what, COUNT), part(what, 16))
    finally:
        done.set()
        thread.join()
