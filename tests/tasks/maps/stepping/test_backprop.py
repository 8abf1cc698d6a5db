"""Steps that are replayed have the bits of eager ones; what cannot be replayed stays eager, and says why."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.values.state import Update
from tasks.algebra import Map
from tasks.applies.schedules import Schedule
from tasks.data.examples import Examples
from tasks.maps.downpour import Downpour
from tasks.maps.elastic import Elastic
from tasks.maps.gradient import Gradient
from tasks.maps.local_steps import LocalSteps
from tasks.maps.prox import FedProx
from tasks.maps.scaffold import Scaffold
from tasks.maps.stepping import backprop
from tasks.maps.stepping.programs import Program
from tasks.networks.objective import ModelSpec, Objective
from tasks.numerics import pinned
from tasks.user_code import find_code
from tests.tasks.maps.stepping.networks import SOUND, UNSOUND, file_of

NEVER = 10**9


@pytest.fixture(autouse=True)
def found(monkeypatch) -> Iterator[list[backprop.Known]]:
    """What became known of each objective's steps."""
    made: list[backprop.Known] = []

    class Kept(backprop.Known):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(backprop, "Known", Kept)
    backprop.known_of.cache_clear()
    yield made
    backprop.known_of.cache_clear()


def images(count: int = 50, dtype: torch.dtype = torch.float32) -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 1, 4, 4, generator=generator).to(dtype)
    return Examples(inputs, torch.randint(0, 3, (count,), generator=generator))


def sequences(count: int = 50) -> Examples:
    generator = torch.Generator().manual_seed(1)
    return Examples(*(torch.randint(0, 3, (count, 8), generator=generator) for _ in range(2)))


def bits(update: Update) -> Any:
    tensors = {
        (kind, name, key): vector.reshape(-1).view(torch.uint8).tolist()
        for kind in ("direction", "buffers")
        for name, vector in getattr(update, kind).items()
        for key in (str(vector.dtype), tuple(vector.shape))
    }
    return tensors, repr(update.metrics), update.weight  # a loss that is NaN is to be equal to itself


def outcome(rule: Map, objective: Objective, part: Examples, eager: int, rounds: int = 5) -> list[Any]:
    """The bits of some rounds of a map, and of all generators after each, where so many steps are eager."""
    backprop.known_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backprop, "EAGER", eager)
        gone, state = [], objective.initial()
        for number in range(rounds):
            with pinned(number, threads=1):
                update = rule(objective, state, part, {}, number)
                draws = torch.rand(()).item(), random.random(), np.random.random()
            gone.append((bits(update), draws))
        return gone


def check(rule: Map, objective: Objective, part: Examples, found: list[backprop.Known]) -> None:
    """The bits are those of eager steps, and all kinds of steps were replayed in the end."""
    wanted = outcome(rule, objective, part, NEVER)
    found.clear()
    assert outcome(rule, objective, part, 1) == wanted
    assert [known.reason for known in found] == [None]
    kinds = found[0].kinds.values()
    assert all(kind.replay is not None and kind.checked == backprop.CHECKED for kind in kinds)


MODELS = {
    "logistic": ("logistic", "{}"),
    "mlp": ("mlp", '{"hidden": 8}'),
    "dropout": ("mlp", '{"hidden": 8, "dropout": 0.3}'),
    "cnn with BatchNorm": ("cnn", '{"channels": 2}'),
    "gpt": ("gpt", '{"width": 8, "heads": 2}'),
}
MAPS = {
    "plain": LocalSteps(steps=9, batch_size=16),
    "schedule": LocalSteps(steps=9, batch_size=16, schedule=Schedule("step:1:0.5")),
    "whole partition": LocalSteps(steps=3, batch_size=None),
    "clipped": LocalSteps(steps=9, batch_size=16, clip_norm=0.5),
    "AdamW": LocalSteps(steps=9, batch_size=16, optimizer="AdamW", lr=0.01),
    "momentum": LocalSteps(steps=9, batch_size=16, options=(("momentum", 0.9), ("nesterov", True))),
    "gradient": Gradient(),
    "gradient of a batch": Gradient(batch_size=16),
    "prox": FedProx(LocalSteps(steps=9, batch_size=16), mu=0.1),
    "elastic": Elastic(LocalSteps(steps=9, batch_size=16), elasticity=0.1),
    "downpour": Downpour(steps=9, batch_size=16),
}


@pytest.mark.parametrize("rule", ["plain", "AdamW"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("model", MODELS)
def test_each_reference_network_of_each_dtype_is_replayed(model: str, dtype: str, rule: str, found) -> None:
    """50 examples in batches of 16: the last of each pass has 2, a kind of its own."""
    name, options = MODELS[model]
    shape, part = ((8,), sequences()) if name == "gpt" else ((1, 4, 4), images(dtype=getattr(torch, dtype)))
    objective = Objective(ModelSpec(name, shape, 3, dtype, 0, options), "cross_entropy")
    check(MAPS[rule], objective, part, found)
    assert len(found[0].kinds) == 2


@pytest.mark.parametrize("model", ["dropout", "cnn with BatchNorm"])
@pytest.mark.parametrize("rule", MAPS)
def test_each_map_takes_its_steps_so(rule: str, model: str, found) -> None:
    name, options = MODELS[model]
    objective = Objective(ModelSpec(name, (1, 4, 4), 3, "float32", 0, options), "cross_entropy")
    check(MAPS[rule], objective, images(), found)


def test_scaffold_takes_its_steps_so(found) -> None:
    objective = Objective(ModelSpec("mlp", (1, 4, 4), 3, "float32", 0), "cross_entropy")
    control = {name: torch.ones_like(v) / 100 for name, v in objective.initial().params.items()}

    class Kept(Objective):
        def initial(self):
            from dataclasses import replace

            return replace(super().initial(), memory={"control": control})

    kept = Kept(objective.model, objective.loss)
    check(Scaffold(LocalSteps(steps=9, batch_size=16)), kept, images(), found)


@given(
    hidden=st.lists(st.integers(1, 5), max_size=3),
    size=st.integers(1, 12),
    act=st.sampled_from(["ReLU", "Tanh", "GELU", "Sigmoid", "SiLU"]),
    loss=st.sampled_from(["cross_entropy", "mse"]),
    lr=st.floats(1e-4, 2.0),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_any_perceptron_is_replayed(hidden, size, act, loss, lr, seed) -> None:
    backprop.known_of.cache_clear()
    generator = torch.Generator().manual_seed(seed)
    classes = loss == "cross_entropy"
    targets = (
        torch.randint(0, 2, (12,), generator=generator) if classes else torch.randn(12, 2, generator=generator)
    )
    part = Examples(torch.randn(12, 3, generator=generator), targets)
    code = find_code("tests.tasks.maps.stepping.perceptron:perceptron")
    options = f'{{"widths": {[3, *hidden, 2]}, "activation": "{act}"}}'
    objective = Objective(ModelSpec(code, (3,), 2, "float32", seed, options), loss)
    rule = LocalSteps(steps=8, batch_size=size, lr=lr)
    wanted = outcome(rule, objective, part, NEVER, rounds=2)
    assert outcome(rule, objective, part, 1, rounds=2) == wanted


# The user's own networks.


def own_objective(own: Callable[..., Any], body: str, name: str = "mine") -> Objective:
    code = find_code(f"{own(file_of(body), name)}:Net")
    return Objective(ModelSpec(code, (1, 4, 4), 3, "float32", 0), "cross_entropy")


@pytest.mark.parametrize("rule", ["plain", "clipped"])
@pytest.mark.parametrize("name", SOUND)
def test_a_network_of_the_users_is_replayed(name: str, rule: str, own, found) -> None:
    check(MAPS[rule], own_objective(own, SOUND[name]), images(), found)


@pytest.mark.parametrize("name", UNSOUND)
def test_what_may_be_otherwise_the_next_time_stays_eager(name: str, own, found) -> None:
    """Two files, since some of them keep what they count beyond a map."""
    reason, body = UNSOUND[name]
    wanted = outcome(MAPS["plain"], own_objective(own, body), images(), NEVER)
    found.clear()
    assert outcome(MAPS["plain"], own_objective(own, body, "again"), images(), 1) == wanted
    assert [reason in str(known.reason) for known in found] == [True], found
    assert not found[0].replays


def test_what_another_kind_of_step_changes_keeps_all_eager(own, found) -> None:
    """Batches of 16 read what the last of each pass, of 2, changes: the first of them is recorded before it."""
    reads = "    return self.last(self.first(x.flatten(1)) * (1 + len(self.log)))"
    body = f"def forward(self, x):\n    if len(x) < 16:\n        self.log.append(1)\n{reads}"
    wanted = outcome(MAPS["plain"], own_objective(own, body), images(), NEVER)
    found.clear()
    assert outcome(MAPS["plain"], own_objective(own, body, "again"), images(), 1) == wanted
    assert found[0].replays
    assert "has log" in str(found[0].reason)


def test_what_is_changed_between_two_maps_keeps_all_eager(own, found) -> None:
    def halved(name: str, eager: int) -> list[Any]:
        objective = own_objective(own, SOUND["constants"], name)
        first = outcome(MAPS["plain"], objective, images(), eager, rounds=1)
        type(objective.built).forward.__globals__["SCALE"] = 0.25
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backprop.known_of, "cache_clear", lambda: None)
            return first + outcome(MAPS["plain"], objective, images(), eager, rounds=2)

    wanted = halved("mine", NEVER)
    found.clear()
    assert halved("again", 1) == wanted
    assert found[0].reason == "SCALE has changed since"


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("plain", "aten.relu(", "aten.sigmoid(", "other bits"),
        ("noise", "aten.randn(", "aten.zeros(", "other random numbers"),
        ("buffer", "aten.mul_(", "aten.mul(", "other bits"),
        ("plain", "aten.relu(", "aten.relu_of(", "TorchScript cannot say it"),
        ("plain", "aten.relu(", "aten.linalg_inv(", "the replay fails"),
    ],
)
def test_a_replay_that_is_otherwise_is_found(name: str, old: str, new: str, reason: str, own, found) -> None:
    objective = own_objective(own, SOUND[name])
    wanted = outcome(MAPS["plain"], objective, images(), NEVER)
    found.clear()
    right = Program.source.fget
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "source", property(lambda program: right(program).replace(old, new)))
        assert outcome(MAPS["plain"], objective, images(), 1) == wanted
    assert reason in str(found[0].reason)


def test_kinds_without_number_keep_all_eager(found) -> None:
    objective = Objective(ModelSpec("logistic", (1, 4, 4), 3, "float32", 0), "cross_entropy")
    with pinned(0, threads=1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(backprop, "EAGER", 1)
        for count in range(1, backprop.KINDS + 2):
            assert found == [] or found[0].reason is None
            for _ in range(4):
                Gradient()(objective, objective.initial(), images(count), {}, 0)
    assert "more than 16 kinds" in str(found[0].reason)


def test_the_gradients_of_a_replay_lie_apart(own, found) -> None:
    """Clipping scales each in place: one that two parameters shared would be scaled twice."""
    objective = own_objective(own, SOUND["one gradient"])
    network = objective.network(objective.initial())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backprop, "EAGER", 0)
        step = backprop.Backprop(objective, network)
        for _ in range(2 + backprop.CHECKED):
            network.zero_grad()
            step(images(8))
    assert found[0].replays
    memory = [p.grad.untyped_storage().data_ptr() for p in network.parameters() if p.grad is not None]
    assert len(memory) == len(set(memory)) > 2


def test_what_other_threads_draw_keeps_nothing_eager(found) -> None:
    """As the event loop of a worker does, at all times."""
    done = threading.Event()

    def draw() -> None:
        while not done.is_set():
            random.random()
            time.sleep(0)

    other = threading.Thread(target=draw)
    objective = Objective(ModelSpec("mlp", (1, 4, 4), 3, "float32", 0), "cross_entropy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backprop, "EAGER", 1)
        other.start()
        try:
            MAPS["plain"](objective, objective.initial(), images(), {}, 0)
        finally:
            done.set()
            other.join()
    assert found[0].reason is None
    assert found[0].replays
