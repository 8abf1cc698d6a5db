"""SCAFFOLD, FedProx and elastic averaging by hand, against the papers' loops, and in runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.maps.federated import Elastic, FedProx, Scaffold
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.reduces.tree import reduce_all
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import find_code
from tests.tasks.algorithms.maps.networks import examples, objective

SQUARE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    def forward(self, inputs):
        return self.weight * inputs
def loss(outputs, targets):
    return ((outputs - targets).square() * inputs_weight(targets)).mean() / 2
def inputs_weight(targets):
    return 1.0 + (targets > 3)
"""


@pytest.fixture
def square(own) -> Objective:
    """(w - target)^2 / 2, and twice that where the target is above 3; from w = 2."""
    path = own(SQUARE)
    return Objective(ModelSpec(find_code(f"{path}:Net"), (1,), 1, "float64", 0), find_code(f"{path}:loss"))


def towards(target: float, count: int = 3) -> Examples:
    return Examples(torch.ones(count, 1).double(), torch.full((count, 1), target).double())


def rounds(algorithm: Algorithm, objective: Objective, parts: list[Examples], count: int) -> list[State]:
    """A run without a store: gives the state after each round."""
    state = objective.initial()
    states = [replace(state, memory=algorithm.apply.init(state.params))]
    carry: list[dict] = [{} for _ in parts]
    for _ in range(count):
        updates = [algorithm.map(objective, states[-1], part, c, 7) for part, c in zip(parts, carry, strict=True)]
        carry = [dict(update.carry) for update in updates]
        states.append(algorithm.apply(states[-1], reduce_all(algorithm.reduce, states[-1], updates)))
    return states


def paper(
    parts: list[tuple[float, float]], lr: float, steps: int, cohorts: list[list[int]], outer: float
) -> float:
    """Algorithm 1 with option II, word by word, on curvature (w - target)^2 / 2, for the cohort of each round."""
    x, c = 2.0, 0.0
    own = [0.0] * len(parts)
    for cohort in cohorts:
        arrived, changes = [], []
        for i in cohort:
            (target, curvature), y = parts[i], x
            for _ in range(steps):
                y -= lr * (curvature * (y - target) - own[i] + c)
            plus = own[i] - c + (x - y) / (steps * lr)
            arrived.append(y - x)
            changes.append(plus - own[i])
            own[i] = plus
        x += outer * sum(arrived) / len(cohort)
        c += len(cohort) / len(parts) * (sum(changes) / len(cohort))
    return x


def test_scaffold_is_the_papers_loop(square: Objective) -> None:
    algorithm = build_algorithm("scaffold", {"local_steps": 3, "batch_size": None, "lr": 0.1, "outer_lr": 0.5})
    parts = [(0.0, 1.0), (2.5, 1.0), (5.0, 2.0)]
    found = rounds(algorithm, square, [towards(target) for target, _ in parts], 8)[-1].params["float64"].item()
    assert found == pytest.approx(paper(parts, 0.1, 3, [[0, 1, 2]] * 8, 0.5), rel=1e-12)


def test_of_a_cohort_it_is_the_papers_loop(own, train) -> None:
    """A run over ten partitions, four of which take part in a round; w begins at the network's own weight."""
    fields = {"algorithm": "scaffold", "local_steps": 3, "batch_size": None, "lr": 0.1, "outer_lr": 0.5}
    source = """
import torch
def data(partition, partitions):
    return torch.ones(2, 1, dtype=torch.float64), torch.full((2, 1), float(partition), dtype=torch.float64)
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))
    def forward(self, x):
        return x @ self.w
"""
    where = {"data": f"{own(source)}:data", "model": f"{own(source)}:Network", "loss": "mse", "dtype": "float64"}
    run = train(**where, **fields, partitions=10, cohort=4, rounds=9, held_out=0)
    cohorts = [[*run.round(number).commit.updates] for number in range(1, 10)]
    assert len({*map(tuple, cohorts)}) > 1
    # The squared error of a target has curvature 2.
    wanted = paper([(float(p), 2.0) for p in range(10)], 0.1, 3, cohorts, 0.5)
    assert run.round(9).state.params["float64"].item() == pytest.approx(wanted, rel=1e-12)


def test_the_variate_is_the_mean_gradient_on_the_way_at_any_rate() -> None:
    what = Objective(ModelSpec("logistic", (1, 4, 4), 3, "float64", 0), "cross_entropy")
    generator = torch.Generator().manual_seed(1)
    part = Examples(torch.randn(40, 1, 4, 4, generator=generator).double(), torch.arange(40) % 3)
    zeros = {"control": {k: torch.zeros_like(p) for k, p in what.initial().params.items()}}
    state = replace(what.initial(), memory=zeros, round=3)
    local = Scaffold(local_epochs=2, batch_size=16, lr=0.2, lr_schedule="step:3:0.5")
    update = local(what, state, part, {}, 7)
    gradients: list[torch.Tensor] = []
    local.walk(what, state, part, 7, lambda name, p: gradients.append(p.grad.reshape(-1).clone()) or 0 * p)
    found = update.carry["control"]["float64"]
    wanted = torch.cat([torch.stack(gradients[n::2]).mean(0) for n in range(2)])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(found, update.extras["control"]["float64"])  # they begin at 0, so this is the change


def test_the_servers_variate_is_the_mean_of_all_partitions_own_whoever_takes_part(train) -> None:
    """Karimireddy et al. 2020, Algorithm 1, lines 14 to 17, of partitions that have unequally many examples."""
    fields = {"model": "mlp", "split": "sizes:power", "partitions": 6, "cohort": 3, "dtype": "float64"}
    run = train(algorithm="scaffold", local_steps=3, rounds=8, **fields)
    carried = [update.carry["control"]["float64"] for update in run.carried(8).values()]
    server = run.round(8).state.memory["control"]["float64"]
    assert server.norm() > 0.01
    torch.testing.assert_close(server, torch.stack(carried).sum(0) / 6, rtol=0, atol=1e-14)


def test_an_apply_that_does_not_keep_the_variate_is_named(square: Objective) -> None:
    with pytest.raises(UsageError, match="wrap its apply in KeepExtras"):
        Scaffold(local_steps=1)(square, square.initial(), towards(0.0), {}, 0)


# FedProx.


def test_two_steps_by_hand(square: Objective) -> None:
    """From 2 towards 0 with lr 0.5 and mu 1: gradients 2 and 1 - 1; the second is 1 towards 0 and 1 back."""
    local = FedProx(local_steps=2, batch_size=None, lr=0.5, mu=1.0)
    update = local(square, square.initial(), towards(0.0), {}, 0)
    assert update.direction["float64"].tolist() == [1.0]
    free = replace(local, mu=0.0)(square, square.initial(), towards(0.0), {}, 0)
    assert free.direction["float64"].tolist() == [1.5]
    # The loss that is told is that of the examples: 4/2 and 1/2.
    assert update.metrics == {"train_loss": 1.25}


@pytest.mark.parametrize(
    ("options", "model"),
    [({"optimizer": "AdamW", "lr": 1e-3}, "cnn"), ({"clip_norm": 0.5, "momentum": 0.9}, "mlp")],
)
def test_without_mu_it_has_the_bits_of_federated_averaging(model: str, options: dict[str, object]) -> None:
    what = objective(model)
    plain, held, free = (
        build_algorithm(name, {"batch_size": 8, **options, **more})
        for name, more in (("fed_avg", {}), ("fed_prox", {}), ("fed_prox", {"mu": 0.0}))
    )
    assert (free.reduce, free.apply) == (plain.reduce, plain.apply)
    one, two, three = (a.map(what, what.initial(), examples(), {}, 7) for a in (plain, free, held))
    assert torch.equal(one.direction["float32"], two.direction["float32"])
    assert not torch.equal(one.direction["float32"], three.direction["float32"])


# Elastic averaging: its turns are the paper's in `asynchronous/test_theory.py`.


LOCAL = LocalSteps(local_steps=3, batch_size=16, lr=0.2)


def tied(elasticity: float | None) -> Elastic:
    return Elastic(**vars(LOCAL), elasticity=elasticity)


def mapped(rule: Elastic | LocalSteps, dtype: str, params: Vectors, carry: Vectors | None = None) -> Update:
    what = objective(dtype=dtype)
    state = what.initial()
    state = type(state)(params, state.buffers, state.frozen)
    with pinned(0, threads=1):
        return rule(what, state, examples(dtype=dtype), {"own": carry} if carry else {}, 7)


def test_a_first_turn_is_local_training_and_moves_no_server() -> None:
    start = objective(dtype="float64").initial().params
    first, local = mapped(tied(0.5), "float64", start), mapped(LOCAL, "float64", start)
    assert not first.direction["float64"].any()
    moved = start["float64"] - first.carry["own"]["float64"]
    assert torch.equal(moved, local.direction["float64"])
    assert (first.weight, first.metrics) == (local.weight, local.metrics)


@pytest.mark.parametrize(("dtype", "elasticity"), [("float32", 0.25), ("float64", 0.5), ("bfloat16", 0.25)])
def test_both_move_towards_each_other_while_the_partition_trains(dtype: str, elasticity: float) -> None:
    server = objective(dtype=dtype).initial().params
    own = {dtype: (2 * server[dtype] + 1).to(server[dtype].dtype)}
    found = mapped(tied(elasticity), dtype, server, own)
    wide = torch.float64 if dtype == "float64" else torch.float32
    move = (elasticity * (own[dtype].to(wide) - server[dtype].to(wide))).to(server[dtype].dtype)
    assert torch.equal(found.direction[dtype], -move)
    trained = mapped(replace(LOCAL, local_steps=1), dtype, own)  # by the gradient of where it was before the move
    found = mapped(replace(tied(elasticity), local_steps=1), dtype, server, own)
    wanted = own[dtype] - trained.direction[dtype] - move
    torch.testing.assert_close(found.carry["own"][dtype], wanted, rtol=0, atol=8 * torch.finfo(wanted.dtype).eps)
