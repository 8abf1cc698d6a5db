"""A partition that an elastic force ties to a server."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from storage.values.state import Update
from storage.values.tensors import Vectors
from tasks.data.examples import Examples
from tasks.data.partitions import Partitions
from tasks.data.sources.images import Digits
from tasks.data.splits.split import Split
from tasks.maps.corrected import Elastic
from tasks.maps.local_steps import LocalSteps
from tasks.networks.objective import ModelSpec, Objective
from tasks.numerics import pinned
from tests.tasks.maps.networks import examples, objective

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


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("elasticity", [0.25, 0.5])
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


def test_a_turn_is_that_of_the_paper_in_plain_floats() -> None:
    """Zhang et al. 2015, Algorithm 1, on the loss (b - 1)^2: of inputs 0 a linear network gives its bias b.

    From b = 3 with the server at 1, an elasticity of 0.25 and lr 0.1: b moves by 0.5, and its first step is by the
    gradient at 3, which is 4: b = 3 - 0.4 - 0.5 = 2.1. The second is by that at 2.1: b = 2.1 - 0.22 = 1.88.
    """
    what = Objective(ModelSpec("linear", (1,), 1, "float64", 0), "mse")
    part = Examples(torch.zeros(4, 1, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    server, own = (torch.tensor([0.0, bias], dtype=torch.float64) for bias in (1.0, 3.0))
    state = replace(what.initial(), params={"float64": server})
    turn = Elastic(local_steps=2, lr=0.1, elasticity=0.25)
    with pinned(0, threads=1):
        update = turn(what, state, part, {"own": {"float64": own}}, 0)
    assert update.direction["float64"].tolist() == [0.0, -0.5]
    assert update.carry["own"]["float64"].tolist() == pytest.approx([0.0, 1.88], abs=1e-12)


def test_what_nobody_pulls_apart_stays() -> None:
    """What is moved on one side is moved on the other: x and the centre keep their sum."""
    server = objective(dtype="float64").initial().params
    own = {"float64": server["float64"] - 3.0}
    still = Elastic(local_steps=1, batch_size=None, lr=1e-300, elasticity=0.3)
    found = mapped(still, "float64", server, own)
    after = found.carry["own"]["float64"] + server["float64"] - found.direction["float64"]
    torch.testing.assert_close(after, own["float64"] + server["float64"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("given", "partitions", "wanted"), [(None, 3, 0.9 / 3), (None, 1, 0.9), (0.2, 3, 0.2)])
def test_its_elasticity_is_by_the_partitions_unless_it_is_given(given, partitions, wanted) -> None:
    rule = tied(given).bound(objective(dtype="float32"), Partitions(Digits(), Split(partitions)))
    assert rule.elasticity == pytest.approx(wanted, rel=1e-15)
