"""The table of named algorithms."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter

from storage.errors import UsageError
from tasks.algebra import Algorithm
from tasks.algorithms.table import ALGORITHMS, build_algorithm
from tasks.applies.adaptive import Adagrad
from tasks.applies.schedules import Schedule
from tasks.applies.sgd import Sgd
from tasks.maps.downpour import Downpour
from tasks.maps.elastic import Elastic
from tasks.maps.gradient import Gradient
from tasks.maps.local_steps import LocalSteps
from tasks.reduces.mean import Mean
from tasks.user_code import find_code
from tasks.when import Asynchronous


def test_names_stand_for_three_values() -> None:
    assert build_algorithm("sync_sgd", {"lr": 0.2, "momentum": 0.9}) == Algorithm(
        Gradient(), Mean(), Sgd(0.2, 0.9)
    )
    local = LocalSteps(steps=5, batch_size=8, lr=0.3)
    assert build_algorithm("fed_avg", {"local_steps": 5, "batch_size": 8, "lr": 0.3}) == Algorithm(
        local, Mean(), Sgd(1.0)
    )
    inner = LocalSteps(steps=50, optimizer="AdamW", lr=1e-3)
    assert build_algorithm("diloco", {}) == Algorithm(inner, Mean(), Sgd(0.7, 0.9, nesterov=True))


def test_algorithms_with_a_server_say_how_it_takes_updates() -> None:
    assert build_algorithm("async_sgd", {"lr": 0.2, "fetch_every": 3}) == Algorithm(
        Gradient(32), Mean(), Sgd(0.2), Asynchronous(fetch_every=3)
    )
    options = {"fetch_every": 4, "push_every": 2, "max_staleness": 5, "stale": "scale"}
    assert build_algorithm("downpour", options) == Algorithm(
        Downpour(2, 32, 0.05, carries=True),
        Mean(),
        Adagrad(0.02, tau=0.1),
        Asynchronous(5, 4, 2, "scale", fetch_drops_carry=True),
    )
    assert build_algorithm("downpour", {"fetch_every": 2, "push_every": 2}).map == Downpour(2, 32, 0.05)
    local = LocalSteps(10, batch_size=32, lr=0.1)
    assert build_algorithm("easgd", {"elasticity": 0.2}) == Algorithm(
        Elastic(local, 0.2), Mean(), Sgd(1.0), Asynchronous()
    )
    buffered = build_algorithm("fed_buff", {"buffer": 3, "local_steps": 5})
    averaging = build_algorithm("fed_avg", {"local_steps": 5, "reduce": "plain_mean"})
    assert buffered == replace(averaging, when=Asynchronous(buffer=3))
    assert build_algorithm("fed_buff", {"reduce": "mean"}).reduce == Mean()


@pytest.mark.parametrize(
    ("options", "steps", "epochs"),
    [({}, None, 1), ({"local_steps": 5}, 5, None), ({"local_epochs": 2}, None, 2)],
)
def test_one_epoch_is_the_default(options, steps, epochs) -> None:
    found = build_algorithm("fed_avg", options).map
    assert (found.steps, found.epochs) == (steps, epochs)


def test_epochs_replace_the_steps_of_diloco() -> None:
    found = build_algorithm("diloco", {"local_epochs": 2}).map
    assert (found.steps, found.epochs) == (None, 2)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_signature_is_a_form(name: str) -> None:
    """Every option by keyword, with a default within its bounds, and the meaning that its type tells."""
    parameters = inspect.signature(ALGORITHMS[name]).parameters
    hints = get_type_hints(ALGORITHMS[name], include_extras=True)
    assert set(hints) == {*parameters, "return"}
    for parameter in parameters.values():
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert hints[parameter.name].__metadata__[0].description
        assert TypeAdapter(hints[parameter.name]).validate_python(parameter.default) == parameter.default
    assert ALGORITHMS[name].__doc__


def test_the_default_of_an_option_is_what_is_built() -> None:
    """Giving every default again builds the same: no other is hidden in the function."""
    for make in ALGORITHMS.values():
        defaults = {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
        assert make(**defaults) == make()


def test_schedules_go_to_the_optimizer_that_they_name() -> None:
    found = build_algorithm("fed_avg", {"lr_schedule": "cosine:9", "warmup": 2, "outer_lr_schedule": "linear:9"})
    assert (found.map.schedule, found.apply.schedule) == (Schedule("cosine:9", 2), Schedule("linear:9"))
    assert build_algorithm("sync_sgd", {"lr_schedule": "step:3:0.5"}).apply.schedule == Schedule("step:3:0.5")
    with pytest.raises(UsageError, match="schedule 'cosine' must be written cosine:ROUNDS"):
        build_algorithm("fed_avg", {"lr_schedule": "cosine"})


def test_an_option_that_an_algorithm_does_not_take_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="algorithm sync_sgd takes no clip_norm, outer_lr; it takes lr, momentum"):
        build_algorithm("sync_sgd", {"lr": 0.1, "outer_lr": 1.0, "clip_norm": 1.0})


def test_the_momentum_of_the_local_optimizer_is_not_that_of_the_outer_one() -> None:
    found = build_algorithm("fed_avg", {"momentum": 0.5, "outer_momentum": 0.9})
    assert found.map.options == (("momentum", 0.5),)
    assert found.apply == Sgd(1.0, 0.9)


def test_an_algorithm_of_ones_own_takes_the_options_it_names(own) -> None:
    source = """
from roundweave import Algorithm, Gradient, Mean, Sgd
def good(lr=0.5): return Algorithm(Gradient(), Mean(), Sgd(lr))
def bad(): return 3
"""
    path = own(source)
    assert build_algorithm(find_code(f"{path}:good"), {"lr": 0.25}).apply == Sgd(0.25)
    with pytest.raises(UsageError, match="takes no momentum; it takes lr"):
        build_algorithm(find_code(f"{path}:good"), {"momentum": 0.5})
    with pytest.raises(UsageError, match="must return an Algorithm, not int"):
        build_algorithm(find_code(f"{path}:bad"), {})
