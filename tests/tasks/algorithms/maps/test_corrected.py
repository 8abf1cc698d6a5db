"""SCAFFOLD and elastic averaging; `test_federated.py` has the paper's loop of the first."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from roundweave import LocalSteps, Update, UsageError
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.maps.federated import Elastic, Scaffold
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.numerics.pinning import pinned
from tests.tasks.algorithms.maps.networks import examples, objective


def test_the_variate_is_the_mean_gradient_on_the_way_at_any_rate() -> None:
    what, part = objective("logistic", "float64"), examples(40, "float64")
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


def test_an_apply_that_does_not_keep_the_variate_is_named() -> None:
    what = objective()
    with pytest.raises(UsageError, match="wrap its apply in KeepExtras"):
        Scaffold(local_steps=1)(what, what.initial(), examples(), {}, 0)


# Elastic averaging: its exchanges are the paper's in `asynchronous/test_theory.py`.


LOCAL = LocalSteps(local_steps=3, batch_size=16, lr=0.2)


def tied(elasticity: float | None) -> Elastic:
    return Elastic(**vars(LOCAL), elasticity=elasticity)


def mapped(rule: Elastic | LocalSteps, dtype: str, params: Vectors, carry: Vectors | None = None) -> Update:
    what = objective(dtype=dtype)
    state = what.initial()
    state = type(state)(params, state.buffers, state.frozen)
    with pinned(0, threads=1):
        return rule(what, state, examples(dtype=dtype), {"own": carry} if carry else {}, 7)


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


def test_the_servers_variate_is_the_mean_of_all_partitions_own_whoever_takes_part(train) -> None:
    """Karimireddy et al. 2020, Algorithm 1, lines 14 to 17, of partitions that have unequally many examples."""
    fields = {"model": "mlp", "split": "sizes:power", "partitions": 6, "cohort": 3, "dtype": "float64"}
    run = train(algorithm="scaffold", local_steps=3, rounds=8, **fields)
    carried = [update.carry["control"]["float64"] for update in run.carried(8).values()]
    server = run.round(8).state.memory["control"]["float64"]
    assert server.norm() > 0.01
    torch.testing.assert_close(server, torch.stack(carried).sum(0) / 6, rtol=0, atol=1e-14)


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
