"""The algorithm of a configuration: options from its parts, wherever they are given, and back from a record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roundweave import TrainConfig, UsageError
from roundweave.flows.config.algorithms import option_fields
from roundweave.flows.config.recorded import differences
from roundweave.flows.evidence.replaying import ReplayConfig
from roundweave.flows.planning.plan import plan
from roundweave.tasks.algorithms.table import ALGORITHMS, build_algorithm

OWN = """
from roundweave import Algorithm, Gradient, Mean, Sgd
def algorithm(sharpness: float = 2.0):
    return Algorithm(Gradient(), Mean(), Sgd(0.1 / sharpness))
"""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_options_and_their_defaults_are_those_of_the_parts(name: str) -> None:
    options = {n: option.default for n, option in ALGORITHMS[name].options.items()}
    assert {n: field.default for n, field in option_fields(name).items()} == options
    assert all(field.description for field in option_fields(name).values())
    assert TrainConfig(algorithm=name).algorithm.build() == build_algorithm(name, {})


def test_the_options_of_a_part_in_place_of_another_are_taken() -> None:
    config = TrainConfig(algorithm="fed_avg", apply="adam", outer_beta1=0.5)
    assert config.algorithm.build().apply.beta1 == 0.5
    assert TrainConfig(**json.loads(config.model_dump_json())) == config


@pytest.mark.parametrize("rounds", ["foo", 1.5, (1, "x")])
def test_a_field_of_several_forms_says_in_one_clause_what_it_takes(rounds: object) -> None:
    with pytest.raises(UsageError) as caught:
        ReplayConfig(run="first", rounds=rounds)
    takes = "expected round numbers (negative from the end), or all, or last"
    assert str(caught.value) == f"rounds = {rounds!r}: {takes}"


def test_a_flat_key_a_table_and_a_flag_over_it_are_the_same() -> None:
    table = TrainConfig(algorithm={"name": "fed_prox", "mu": 0.3, "lr": 0.2})
    assert TrainConfig(algorithm="fed_prox", mu=0.3, lr=0.2) == table
    assert TrainConfig(algorithm={"name": "fed_prox", "mu": 0.7}, mu=0.3, lr=0.2) == table
    assert table.algorithm.options["mu"] == 0.3


def test_an_own_algorithm_takes_what_its_function_names(own) -> None:
    path = own(OWN)
    planned = plan(TrainConfig(algorithm=f"{path}:algorithm", sharpness=4.0))
    assert planned.algorithm.apply.lr == 0.025
    assert list(option_fields(f"{path}:algorithm")) == ["sharpness"]
    with pytest.raises(UsageError, match="takes no outer_lr; it takes sharpness"):
        plan(TrainConfig(algorithm=f"{path}:algorithm", outer_lr=1.0))


def test_a_record_gives_the_configuration_back(own) -> None:
    for algorithm in ("scaffold", f"{own(OWN)}:algorithm"):
        config = plan(TrainConfig(algorithm=algorithm)).config
        again = TrainConfig(**json.loads(config.model_dump_json()))
        assert again == config
        assert differences(json.loads(config.model_dump_json()), again) == []


def test_experiments_differ_by_the_options_of_their_algorithms(own) -> None:
    before = plan(TrainConfig(algorithm="fed_prox", mu=0.1)).config
    recorded = json.loads(before.model_dump_json())
    after = TrainConfig(algorithm="fed_prox", mu=0.2, seed=3)
    assert set(differences(recorded, after)) == {"mu 0.1 -> 0.2", "seed 0 -> 3"}
    other = TrainConfig(algorithm="fed_avg")
    assert differences(recorded, other) == ["algorithm fed_prox -> fed_avg"]


def test_code_that_differs_is_said_by_the_definitions_that_changed(own) -> None:
    source = """
from torch import nn
WIDTH = {}
def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH))
# a comment
"""

    def config(text: str) -> TrainConfig:
        return plan(TrainConfig(model=f"{own(text)}:model")).config

    recorded = config(source.format(10)).model_dump(mode="json")
    assert differences(recorded, config(source.format(10).replace("a comment", "another"))) == []
    assert differences(recorded, config(source.format(12))) == ["model mine.py:model, of which WIDTH changed"]


@pytest.fixture(scope="module")
def train_flow() -> Any:
    from roundweave.flows import train_flow

    return train_flow


def test_prefects_form_has_every_algorithm_with_its_options(train_flow) -> None:
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(train_flow.fn).model_dump()["definitions"]
    for name in ALGORITHMS:
        model = schema["".join(part.capitalize() for part in name.split("_"))]
        assert set(model["properties"]) == {"name", "map", "reduce", "apply", *option_fields(name)}
    assert schema["FedProx"]["properties"]["mu"]["description"].startswith("weight of the proximal term")
    assert schema["TrainConfig"]["additionalProperties"] is True  # `mu` beside the others, and what we refuse


def test_prefect_takes_an_algorithms_table_and_a_mistyped_option_is_refused_with_the_nearest_name(
    train_flow,
) -> None:
    from prefect.utilities.callables import parameter_schema
    from prefect.utilities.schema_tools.validation import validate

    schema = parameter_schema(train_flow.fn).model_dump_for_openapi()
    for given in ({"algorithm": {"name": "fed_avg", "local_steps": 2}}, {"algorithm": "fed_prox", "mu": 0.1}):
        validate({"config": given}, schema, raise_on_error=True)
        train_flow.validate_parameters({"config": given})
    validate({"config": {"roundz": 3}}, schema, raise_on_error=True)
    with pytest.raises(Exception, match="unknown field 'roundz'; did you mean rounds"):
        train_flow.validate_parameters({"config": {"roundz": 3}})
