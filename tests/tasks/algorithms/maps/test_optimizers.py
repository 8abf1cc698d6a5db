"""Optimizers as people write them: with groups of their own, and without weight decay on some parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import roundweave as rw
from roundweave.storage.errors import ExperimentDiffers, UsageError
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.maps.optimizers import decay_groups
from roundweave.tasks.algorithms.table import build_algorithm
from tests.tasks.algorithms.maps.networks import distance, examples, looped, objective
from tests.tasks.algorithms.maps.test_optimizer_state import apart

LOCAL = LocalSteps(local_steps=4, batch_size=16, lr=0.01)

GROUPS = """
import torch
import roundweave as rw

def groups(network):
    first, *others = network.parameters()
    return torch.optim.AdamW([{"params": [first], "lr": 0.02}, {"params": others, "weight_decay": 0.3}], lr=0.005)

def algorithm():
    return rw.Algorithm(rw.LocalSteps(local_steps=2, optimizer=groups), rw.Mean(), rw.Sgd(lr=1.0))

class Away(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data - group["lr"] * parameter.grad

def away(network):
    return Away(network.parameters(), lr=0.1)
"""


def in_groups(parameters: list[nn.Parameter], times: float = 1.0) -> torch.optim.Optimizer:
    """What GROUPS makes, its learning rates times a number."""
    first, *others = parameters
    groups = [{"params": [first], "lr": 0.02 * times}, {"params": others, "weight_decay": 0.3}]
    return torch.optim.AdamW(groups, lr=0.005 * times)


def test_groups_are_those_of_the_users_function(own) -> None:
    local = LocalSteps(local_steps=4, batch_size=16, optimizer=f"{own(GROUPS)}:groups", optimizer_state="carried")
    assert apart(local, in_groups, objective(dtype="float64"), examples(dtype="float64")) < 1e-12


def test_a_schedule_multiplies_each_groups_rate(own) -> None:
    what, part = objective(dtype="float64"), examples(dtype="float64")
    state = replace(what.initial(), round=10)
    local = LocalSteps(local_steps=4, batch_size=16, optimizer=f"{own(GROUPS)}:groups", lr_schedule="step:10:0.5")
    found = local(what, state, part, {}, 7)
    network = looped(what, part, lambda p: in_groups(p, 0.5))
    assert distance(what, state.params, found.direction, network) < 1e-12


def test_parameters_may_be_given_other_memory(own) -> None:
    what, part = objective(), examples()
    steps = {"local_steps": 4, "batch_size": 16}
    away, inside = LocalSteps(**steps, optimizer=f"{own(GROUPS)}:away"), LocalSteps(**steps, lr=0.1)
    found, wanted = (local(what, what.initial(), part, {}, 7).direction["float32"] for local in (away, inside))
    torch.testing.assert_close(found, wanted)
    assert found.abs().max() > 0


def test_groups_of_a_file_are_part_of_the_run_in_either_way_of_naming_them(train, own, tmp_path) -> None:
    """It replays after the file is gone, goes on with no other function, and needs trust from another root."""
    file = own(GROUPS)
    fields = {"rounds": 2, "partitions": 2}
    run = train(**fields, optimizer=f"{file}:groups", local_steps=2, name="run")
    assert run.config["algorithm"]["lr"] == 1.0
    assert run.digest == train(**fields, algorithm=f"{file}:algorithm", name="itself").digest
    with pytest.raises(ExperimentDiffers, match=r"mine\.py:groups, of which groups changed"):
        train(**fields, optimizer=f"{own(GROUPS.replace('0.02', '0.01'))}:groups", local_steps=2, name="run")
    (tmp_path / "mine.py").write_text("broken")
    assert run.replay("all").identical
    assert rw.open_run("itself").replay("all").identical
    with pytest.raises(UsageError, match=r"holds code \(.*mine\.py:groups\)"):
        rw.fork(f"{run.path}@1", root=tmp_path / "other")


def test_a_function_of_a_notebook_is_kept_by_value(train) -> None:
    def of(network):
        return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    fields = {"rounds": 2, "local_steps": 2, "partitions": 2}
    run = train(**fields, optimizer=of, name="own")
    named = train(**fields, optimizer="SGD", momentum=0.9, lr=0.1, name="named")
    assert run.digest == named.digest
    assert run.replay("all").identical


# Weight decay.


class OwnNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))


BIASES = {"embed.bias", "norm.bias", "attention.in_proj_bias", "attention.out_proj.bias"}
NORMS = {"norm.weight", "norm.bias", "last.scale"}


@pytest.mark.parametrize(
    ("without", "wanted"), [(["biases"], BIASES), (["norms"], NORMS), (["biases", "norms"], BIASES | NORMS)]
)
def test_biases_and_the_parameters_of_norms_do_not_decay(without: list[str], wanted: set[str]) -> None:
    """Of a network with two kinds of normalisation layers, one of them of the user's own, and attention."""
    network = nn.ModuleDict({"embed": nn.Linear(16, 8), "norm": nn.LayerNorm(8), "last": OwnNorm()})
    network["attention"] = nn.MultiheadAttention(8, 2)
    decaying, kept = decay_groups(network, without)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    assert {names[id(parameter)] for parameter in kept["params"]} == wanted
    assert len(decaying["params"]) + len(kept["params"]) == len(names)
    assert kept["weight_decay"] == 0.0
    assert "weight_decay" not in decaying


def test_the_rest_decays_as_in_torch() -> None:
    options = {"weight_decay": 0.5}
    local = replace(LOCAL, optimizer="AdamW", optimizer_options=options, optimizer_state="carried")
    given = objective(dtype="float64"), examples(dtype="float64")

    def in_two(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        one, two = ([p for p in parameters if (p.ndim > 1) == matrix] for matrix in (True, False))
        return torch.optim.AdamW([{"params": one}, {"params": two, "weight_decay": 0}], lr=0.01, **options)

    assert apart(replace(local, no_decay_on=("biases", "norms")), in_two, *given) < 1e-12
    assert apart(local, in_two, *given) > 1e-3


def test_a_text_is_split_at_commas() -> None:
    local = LocalSteps(optimizer="AdamW", no_decay_on="biases, norms")  # type: ignore[arg-type]
    assert local.no_decay_on == ("biases", "norms")
    assert build_algorithm("diloco", {"no_decay_on": "norms"}).map.no_decay_on == ("norms",)  # type: ignore[attr-defined]


def test_what_the_function_decides_is_not_given_to_a_part_besides(own) -> None:
    for options, says in (({"momentum": 0.9}, "momentum itself"), ({"lr": 0.1}, r"leave lr = 0\.1 out")):
        with pytest.raises(UsageError, match=says):
            LocalSteps(optimizer=f"{own(GROUPS)}:groups", **options)
