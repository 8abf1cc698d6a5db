"""The table of named algorithms."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from pydantic import TypeAdapter

from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.optimizers import Adagrad, Adam, KeepExtras, Sgd
from roundweave.tasks.algorithms.maps.federated import Elastic, FedProx, Scaffold
from roundweave.tasks.algorithms.maps.gradient import Downpour, Gradient
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.reduces.matched import Matched
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.algorithms.reduces.robust import Krum, Median
from roundweave.tasks.algorithms.table import ABOUT, ALGORITHMS, build_algorithm, make_part, part_options
from roundweave.tasks.algorithms.when import Asynchronous, Buffered, Fetching, Pushing
from roundweave.tasks.own_code.code import find_code


def test_names_stand_for_three_values() -> None:
    stepped = Algorithm(Gradient(), Mean(), Sgd(0.2, 0.9))
    assert build_algorithm("sync_sgd", {"lr": 0.2, "momentum": 0.9}) == stepped
    local = {"local_steps": 5, "batch_size": 8, "lr": 0.3}
    assert build_algorithm("fed_avg", local) == Algorithm(LocalSteps(**local), Mean(), Sgd(1.0))
    inner = LocalSteps(local_steps=50, optimizer="AdamW", lr=1e-3)
    assert build_algorithm("diloco", {}) == Algorithm(inner, Mean(), Sgd(0.7, 0.9, nesterov=True))


def test_algorithms_with_a_server_say_how_it_takes_updates() -> None:
    fetching = Algorithm(Gradient(32), Mean(), Sgd(0.2), Fetching(fetch_every=3))
    assert build_algorithm("async_sgd", {"lr": 0.2, "fetch_every": 3}) == fetching
    options = {"fetch_every": 4, "push_every": 2, "max_staleness": 5, "stale": "scale"}
    parts = Downpour(lr=0.05, push_every=2, fetch_every=4), Mean(), Adagrad(0.02, tau=0.1)
    assert build_algorithm("downpour", options) == Algorithm(*parts, Pushing(5, 4, 2, "scale"))
    assert build_algorithm("downpour", {"fetch_every": 2, "push_every": 2}).map.carry == ()
    elastic = Algorithm(Elastic(local_steps=10, elasticity=0.2), Mean(), Sgd(1.0), Asynchronous())
    assert build_algorithm("easgd", {"elasticity": 0.2}) == elastic
    buffered = build_algorithm("fed_buff", {"buffer": 3, "local_steps": 5})
    averaging = build_algorithm("fed_avg", {"local_steps": 5}, {"reduce": "plain_mean"})
    assert buffered == replace(averaging, when=Buffered(buffer=3))
    assert build_algorithm("fed_buff", {}, {"reduce": "mean"}).reduce == Mean()


def test_one_epoch_is_the_default_and_epochs_replace_the_steps_of_diloco() -> None:
    counts = {"fed_avg": (4, 8, 5), "diloco": (50, 8, 5)}
    for name, wanted in counts.items():
        given = ({}, {"local_epochs": 2}, {"local_steps": 5})
        assert tuple(build_algorithm(name, options).map.count(100) for options in given) == wanted


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_option_is_described_and_its_default_is_within_its_bounds(name: str) -> None:
    for option in ALGORITHMS[name].options.values():
        assert option.annotation.__metadata__[0].description
        assert TypeAdapter(option.annotation).validate_python(option.default) == option.default
    assert ABOUT[name]
    defaults = {option: each.default for option, each in ALGORITHMS[name].options.items()}
    assert build_algorithm(name, defaults) == build_algorithm(name, {})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_options_of_an_algorithm_are_those_of_its_parts(name: str) -> None:
    """Nothing is subtracted: every described field of every part can be given, and reaches it."""
    preset = ALGORITHMS[name]
    reached = {to for option in preset.options.values() for to in option.fields}
    for kind, part in (("map", preset.map), ("reduce", preset.reduce), ("apply", preset.apply)):
        described = part_options(part)
        assert {to for kind_of, to in reached if kind_of == kind} == set(described)
        assert not isinstance(part, type) or set(described) <= {each.name for each in fields(part)}


def test_each_part_of_any_algorithm_can_be_replaced() -> None:
    other = build_algorithm("fed_avg", {"outer_beta1": 0.5, "mu": 0.2}, {"map": "fed_prox", "apply": "adam"})
    assert other == Algorithm(FedProx(mu=0.2), Mean(), Adam(beta1=0.5))
    assert build_algorithm("sync_sgd", {}, {"reduce": "krum:1"}).reduce == Krum(1)
    controlled = build_algorithm("fed_avg", {"outer_momentum": 0.9}, {"map": "scaffold"})
    assert controlled == Algorithm(Scaffold(), Mean(), KeepExtras(Sgd(1.0, 0.9), ("control",)))
    for replaced, apply in (({"map": "mime_lite"}, Sgd()), ({"map": "mime_lite", "apply": "adam"}, Adam())):
        assert build_algorithm("fed_avg", {}, replaced).apply == KeepExtras(apply, ("momentum",), of_all=False)
    assert build_algorithm("mime_lite", {}, {"map": "scaffold"}).apply == KeepExtras(Sgd(), ("control",))
    assert build_algorithm("mime_lite", {}, {"map": "local_steps"}).apply == Sgd()
    matched = build_algorithm("fed_prox", {"match": "activations", "average": "median"}, {"reduce": "matched"})
    assert matched.reduce == Matched("activations", average="median")
    # What an algorithm changes of a part's defaults goes with that part.
    assert build_algorithm("diloco", {}, {"apply": "adam"}).apply == Adam()
    assert build_algorithm("diloco", {}, {"map": "scaffold"}).map == Scaffold()
    # What it changes of another part stays, even if the option is then called by another name.
    assert build_algorithm("fed_avgm", {}, {"map": "gradient"}).apply == Sgd(1.0, 0.9)
    assert build_algorithm("sync_sgd", {}, {"map": "local_steps"}).apply == Sgd(0.1)


@pytest.mark.parametrize(
    ("kind", "named", "options", "says"),
    [
        ("apply", "sgd", {"speed": 1}, "apply sgd takes no speed; it takes lr, lr_schedule, warmup, momentum"),
        ("apply", "sgd", {"lr": -1}, "apply sgd: lr = -1: Input should be greater than 0"),
        ("apply", "adam", {"lr": True}, "apply adam: lr = True: Input should be a valid number"),
        ("apply", "sgdd", {}, "unknown apply 'sgdd'; did you mean sgd"),
    ],
)
def test_a_part_by_name_refuses_what_it_does_not_take(kind, named, options, says) -> None:
    with pytest.raises(UsageError) as caught:
        make_part(kind, named, options)
    assert str(caught.value).startswith(says)


def test_partitions_that_begin_apart_are_matched_to_one_another() -> None:
    apart = {"init": "per-partition"}
    assert build_algorithm("matched", apart).reduce.to == "many"
    assert build_algorithm("matched", {**apart, "soft": 3}).reduce.to == "first"
    assert build_algorithm("matched", {**apart, "match_to": "start"}).reduce.to == "start"
    assert build_algorithm("matched", {}).reduce.to == "start"


def test_schedules_and_momentum_go_to_the_optimizer_that_they_name() -> None:
    options = {"lr_schedule": "cosine:9", "warmup": 2, "outer_lr_schedule": "linear:9", "momentum": 0.5}
    found = build_algorithm("fed_avg", options | {"outer_momentum": 0.9})
    assert (found.map.lr_schedule, found.map.warmup, found.apply.lr_schedule) == ("cosine:9", 2, "linear:9")
    assert (found.map.all_options, found.apply.momentum) == ({"momentum": 0.5}, 0.9)
    assert build_algorithm("sync_sgd", {"lr_schedule": "step:3:0.5"}).apply.lr_schedule == "step:3:0.5"


def test_an_algorithm_of_ones_own_takes_the_options_it_names_by_the_types_that_it_annotates(own) -> None:
    path = own("""
from roundweave import Algorithm, Gradient, Mean, Median, Sgd
def good(lr: float = 0.5, name="x"): return Algorithm(Gradient(), Mean(), Sgd(lr))
def middle(): return Median()
""")
    assert build_algorithm(find_code(f"{path}:good"), {"lr": "2"}).apply == Sgd(2.0)
    assert build_algorithm("fed_avg", {}, {"reduce": find_code(f"{path}:middle")}).reduce == Median()
