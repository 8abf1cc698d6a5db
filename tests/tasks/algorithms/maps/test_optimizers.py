"""Optimizers as people write them: with groups of their own, and without weight decay on some parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from roundweave.storage.errors import CodeError, UsageError
from roundweave.storage.values.state import State
from roundweave.tasks.algorithms.maps.backprop import batches
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.maps.optimizers import decay_groups
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.compute.compute import Compute
from tests.tasks.algorithms.maps.networks import examples, objective
from tests.tasks.algorithms.maps.test_optimizer_state import distance, looped, rounds

LOCAL = LocalSteps(local_steps=4, batch_size=16, lr=0.01)

GROUPS = """
import torch

def groups(network):
    first, *others = network.parameters()
    return torch.optim.AdamW([{"params": [first], "lr": 0.02}, {"params": others, "weight_decay": 0.3}], lr=0.005)
"""


def in_groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """What GROUPS makes."""
    first, *others = parameters
    return torch.optim.AdamW([{"params": [first], "lr": 0.02}, {"params": others, "weight_decay": 0.3}], lr=0.005)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_groups_are_those_of_the_users_function(own, model: str) -> None:
    what, part = objective(model, "float64"), examples(dtype="float64")
    local = LocalSteps(local_steps=4, batch_size=16, optimizer=f"{own(GROUPS)}:groups", optimizer_state="carried")
    assert distance(what, rounds(local, what, part)[0], looped(local, in_groups, what, part)) < 1e-12


def test_a_schedule_multiplies_each_groups_rate(own) -> None:
    what, part = objective(dtype="float64"), examples(dtype="float64")
    state = replace(what.initial(), round=10)
    local = LocalSteps(local_steps=4, optimizer=f"{own(GROUPS)}:groups", lr_schedule="step:10:0.5")
    found = local(what, state, part, {}, 7)

    network = what.network(state)
    optimizer = in_groups(list(network.parameters()))
    for group in optimizer.param_groups:
        group["lr"] /= 2
    for batch in batches(part, 32, 4, seed=7):
        optimizer.zero_grad()
        what.value(network(batch.inputs), batch.targets).backward()
        optimizer.step()
    arrived = {name: state.params[name] - vector for name, vector in found.direction.items()}
    assert distance(what, State(arrived), network) < 1e-12


def test_groups_replay_after_their_file_is_gone(train, own, tmp_path) -> None:
    fields = {"rounds": 3, "local_steps": 2, "partitions": 2, "optimizer_state": "carried"}
    run = train(**fields, optimizer=f"{own(GROUPS)}:groups", name="run")
    assert run.config["algorithm"]["lr"] == 1.0
    (tmp_path / "mine.py").unlink()
    assert run.replay("all").identical


AWAY = """
import torch

class Away(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data - group["lr"] * parameter.grad

def away(network):
    return Away(network.parameters(), lr=0.1)
"""


def test_parameters_may_be_given_other_memory(own) -> None:
    what, part = objective(), examples()
    state = what.initial()
    steps = {"local_steps": 4, "batch_size": 16}
    away, inside = LocalSteps(**steps, optimizer=f"{own(AWAY)}:away"), LocalSteps(**steps, lr=0.1)
    found, wanted = (local(what, state, part, {}, 7).direction["float32"] for local in (away, inside))
    torch.testing.assert_close(found, wanted)
    assert found.abs().max() > 0


def test_another_function_is_another_experiment(train, own) -> None:
    from roundweave.storage.errors import ExperimentDiffers

    fields = {"rounds": 1, "local_steps": 1, "partitions": 2, "name": "run"}
    train(**fields, optimizer=f"{own(GROUPS)}:groups")
    with pytest.raises(ExperimentDiffers, match=r"mine\.py:groups, of which groups changed"):
        train(**fields, optimizer=f"{own(GROUPS.replace('0.02', '0.01'))}:groups")


def test_a_function_of_a_notebook_is_kept_by_value(train) -> None:
    def of(network):
        return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    fields = {"rounds": 2, "local_steps": 2, "partitions": 2}
    run = train(**fields, optimizer=of, name="own")
    named = train(**fields, optimizer="SGD", momentum=0.9, lr=0.1, name="named")
    assert run.digest == named.digest
    assert run.replay("all").identical


ALGORITHM = (
    GROUPS
    + """
import roundweave as rw

def algorithm():
    return rw.Algorithm(rw.LocalSteps(local_steps=2, optimizer=groups), rw.Mean(), rw.Sgd(lr=1.0))
"""
)


def test_an_algorithm_of_ones_own_takes_the_function_itself(train, own, tmp_path) -> None:
    file = own(ALGORITHM)
    run = train(algorithm=f"{file}:algorithm", rounds=2, partitions=2, name="run")
    named = train(optimizer=f"{file}:groups", local_steps=2, rounds=2, partitions=2, name="named")
    assert run.digest == named.digest
    (tmp_path / "mine.py").write_text("broken")
    assert run.replay("all").identical


# Weight decay.


class Normed(nn.Module):
    """A network with two kinds of normalisation layers, one of them of the user's own, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.last = OwnNorm()


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
    network = Normed()
    decaying, kept = decay_groups(network, without)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    assert {names[id(parameter)] for parameter in kept["params"]} == wanted
    assert len(decaying["params"]) + len(kept["params"]) == len(names)
    assert kept["weight_decay"] == 0.0
    assert "weight_decay" not in decaying


def test_the_rest_decays_as_in_torch() -> None:
    what, part = objective(dtype="float64"), examples(dtype="float64")
    options = {"weight_decay": 0.5}
    local = replace(LOCAL, optimizer="AdamW", optimizer_options=options, optimizer_state="carried")
    local = replace(local, no_decay_on=("biases", "norms"))

    def in_two(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        one, two = ([p for p in parameters if (p.ndim > 1) == matrix] for matrix in (True, False))
        return torch.optim.AdamW([{"params": one}, {"params": two, "weight_decay": 0}], lr=0.01, **options)

    assert distance(what, rounds(local, what, part)[0], looped(local, in_two, what, part)) < 1e-12
    decayed = replace(local, no_decay_on=())
    assert distance(what, rounds(decayed, what, part)[0], looped(local, in_two, what, part)) > 1e-3


def test_a_text_is_split_at_commas() -> None:
    local = LocalSteps(optimizer="AdamW", no_decay_on="biases, norms")  # type: ignore[arg-type]
    assert local.no_decay_on == ("biases", "norms")
    assert build_algorithm("diloco", {"no_decay_on": "norms"}).map.no_decay_on == ("norms",)  # type: ignore[attr-defined]


# What cannot be meant.


def test_what_decays_no_weights_needs_no_exceptions() -> None:
    with pytest.raises(UsageError, match="optimizer SGD decays no weights here: give it a weight_decay, or "):
        LocalSteps(no_decay_on=("biases",))
    with pytest.raises(UsageError, match=r"no_decay_on = .*'biases' or 'norms'"):
        LocalSteps(optimizer="AdamW", no_decay_on=("weights",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"momentum": 0.9}, "optimizer mine.py:groups decides about momentum itself; leave that out"),
        ({"no_decay_on": "norms", "optimizer_options": {"eps": 1}}, "about optimizer_options, no_decay_on itself"),
        ({"lr": 0.3}, r"mine.py:groups sets its learning rates itself; leave lr = 0\.3 out"),
        ({"lr": 0.1}, r"mine.py:groups sets its learning rates itself; leave lr = 0\.1 out"),
    ],
)
def test_what_the_function_decides_is_not_given_besides(own, options, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build_algorithm("diloco", {"optimizer": f"{own(GROUPS)}:groups", **options})
    with pytest.raises(UsageError, match=says):
        LocalSteps(optimizer=f"{own(GROUPS)}:groups", **options)


WRONG = """
import torch

def nothing(network):
    return None

def fails(network):
    return torch.optim.SGD(network.nothing(), lr=0.1)

def other(network):
    return torch.optim.SGD([*network.parameters(), torch.nn.Parameter(torch.ones(1))], lr=0.1)

def some(network):
    return torch.optim.SGD([*network.parameters()][1:], lr=0.1)

class Broken(torch.optim.SGD):
    def step(self):
        self.nothing

def broken(network):
    return Broken(network.parameters(), lr=0.1)

def searching(network):
    return torch.optim.LBFGS(network.parameters())
"""


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("nothing", UsageError, r"must return a torch\.optim\.Optimizer, not NoneType"),
        ("fails", CodeError, r"failed with .*no attribute 'nothing'"),
        ("other", UsageError, "has parameters of another network than it was called with; take those of this one"),
        ("some", UsageError, r"leaves out fc1\.weight; give all to groups, or let the model freeze what is not"),
        ("broken", UsageError, "optimizer Broken cannot train this network: .*no attribute 'nothing'"),
        ("searching", UsageError, "optimizer LBFGS computes the loss several times in a step"),
    ],
)
def test_a_function_that_makes_no_optimizer_of_the_network_is_refused_before_round_1(
    own, name: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        LocalSteps(optimizer=f"{own(WRONG)}:{name}").bound(objective(), None)


def test_a_file_without_the_function_is_refused_at_once(own) -> None:
    with pytest.raises(CodeError, match="no such function"):
        LocalSteps(optimizer=f"{own(GROUPS)}:grups")


def test_it_is_not_for_stacked_partitions_nor_for_ranks(own) -> None:
    local = LocalSteps(optimizer=f"{own(GROUPS)}:groups")
    with pytest.raises(UsageError, match=r"stacked = 8 is for plain SGD .*, not for map .*groups"):
        Compute(stacked=8).mapper(local)
    with pytest.raises(UsageError, match=r"ranks = 2 is for maps .*, not for map .*groups"):
        Compute(ranks=2).mapper(local)


def test_code_of_another_root_is_run_only_if_it_is_trusted(train, own, tmp_path) -> None:
    import roundweave as rw

    train(rounds=1, local_steps=1, partitions=2, optimizer=f"{own(GROUPS)}:groups", name="run")
    place = str(tmp_path / "runs" / "run")
    with pytest.raises(UsageError, match=r"holds code \(.*mine\.py:groups\)"):
        rw.fork(f"{place}@1", root=tmp_path / "other")
    assert rw.fork(f"{place}@1", root=tmp_path / "other", trust=True).algorithm.code
