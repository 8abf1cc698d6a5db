"""A partition that an elastic force ties to a server."""

from __future__ import annotations

import pytest
import torch

from storage.values.state import Update
from storage.values.tensors import Vectors
from tasks.data.examples import Examples
from tasks.data.partitions import Partitions
from tasks.data.sources.digits import Digits
from tasks.data.splits import Split
from tasks.maps.elastic import Elastic
from tasks.maps.local_steps import LocalSteps
from tasks.networks.objective import ModelSpec, Objective
from tasks.numerics import pinned

LOCAL = LocalSteps(3, batch_size=16, lr=0.2)


def objective(dtype: str) -> Objective:
    return Objective(ModelSpec("mlp", (1, 4, 4), 3, dtype, 0), "cross_entropy")


def examples(dtype: str) -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(50, 1, 4, 4, generator=generator).to(getattr(torch, dtype))
    return Examples(inputs, torch.randint(0, 3, (50,), generator=generator))


def mapped(rule: Elastic | LocalSteps, dtype: str, params: Vectors, carry: Vectors | None = None) -> Update:
    what = objective(dtype)
    state = what.initial()
    state = type(state)(params, state.buffers, state.frozen)
    with pinned(0, threads=1):
        return rule(what, state, examples(dtype), {"own": carry} if carry else {}, 7)


def test_a_first_turn_is_local_training_and_moves_no_server() -> None:
    start = objective("float64").initial().params
    first, local = mapped(Elastic(LOCAL, 0.5), "float64", start), mapped(LOCAL, "float64", start)
    assert not first.direction["float64"].any()
    moved = start["float64"] - first.carry["own"]["float64"]
    assert torch.equal(moved, local.direction["float64"])
    assert (first.weight, first.metrics) == (local.weight, local.metrics)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("elasticity", [0.25, 0.5])
def test_both_move_towards_each_other_and_then_the_partition_trains(dtype: str, elasticity: float) -> None:
    server = objective(dtype).initial().params
    own = {dtype: (2 * server[dtype] + 1).to(server[dtype].dtype)}
    found = mapped(Elastic(LOCAL, elasticity), dtype, server, own)
    wide = torch.float64 if dtype == "float64" else torch.float32
    move = (elasticity * (own[dtype].to(wide) - server[dtype].to(wide))).to(server[dtype].dtype)
    assert torch.equal(found.direction[dtype], -move)
    trained = mapped(LOCAL, dtype, {dtype: own[dtype] - move})
    assert torch.equal(own[dtype] - move - found.carry["own"][dtype], trained.direction[dtype])


def test_what_nobody_pulls_apart_stays() -> None:
    """What is moved on one side is moved on the other: x and the centre keep their sum."""
    server = objective("float64").initial().params
    own = {"float64": server["float64"] - 3.0}
    still = Elastic(LocalSteps(1, batch_size=None, lr=1e-300), 0.3)
    found = mapped(still, "float64", server, own)
    after = found.carry["own"]["float64"] + server["float64"] - found.direction["float64"]
    torch.testing.assert_close(after, own["float64"] + server["float64"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("given", "partitions", "wanted"), [(None, 3, 0.9 / 3), (None, 1, 0.9), (0.2, 3, 0.2)])
def test_its_elasticity_is_by_the_partitions_unless_it_is_given(given, partitions, wanted) -> None:
    rule = Elastic(LOCAL, given).bound(objective("float32"), Partitions(Digits(), Split(partitions)))
    assert rule.elasticity == pytest.approx(wanted, rel=1e-15)
