"""Training in float16 is torch's autocast with its gradient scaler, whose scale a partition carries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import roundweave as rw
from roundweave.flows.plugins.device.on_device import OnDevice
from roundweave.flows.plugins.device.scaled import SLOT, Scaled, Scaler
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.networks.objective import ModelSpec, Objective
from tests.rows import but_first

HALF = OnDevice(Mapper(), "fp16", compiled=False)
LOCAL = rw.LocalSteps(local_steps=4, batch_size=16, lr=0.001)
WIDE = {
    "plain": LOCAL,
    "accumulated": replace(LOCAL, batch_size=8, accumulate=2),
    "clipped": replace(LOCAL, clip_norm=1.0),
    "adamw": replace(LOCAL, optimizer="AdamW", optimizer_state="carried"),
}


def objective() -> Objective:
    return Objective(ModelSpec("mlp", (1, 8, 8), 10, "float32", seed=0), "cross_entropy")


def examples(size: float = 30.0) -> rw.Examples:
    """Inputs so large that gradients overflow float16 when the loss is scaled by 2^16."""
    inputs = size * torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return rw.Examples(inputs, torch.arange(64) % 10)


def rounds(local: rw.LocalSteps, count: int = 2) -> tuple[rw.State, list[dict[str, float]], dict[str, Any]]:
    """So many rounds of one partition with `fed_avg`: the state, the metrics of each round, and the carry."""
    what = objective()
    algorithm = rw.Algorithm(Scaled(local), rw.Mean(), rw.Sgd(lr=1.0)).bound(what, None)
    state, carry, metrics = what.initial(), {}, []
    for number in range(count):
        [update] = HALF(algorithm.map, what, state, [(examples(), carry, number)])
        carry = dict(update.carry)
        metrics.append(dict(update.metrics))
        state = algorithm.apply(state, rw.reduce_all(algorithm.reduce, state, [update]))
    return state, metrics, carry


def looped(local: rw.LocalSteps, count: int = 2) -> tuple[torch.Tensor, list[float], dict[str, Any], int]:
    """The same as one loop of plain torch: parameters, mean losses, the scaler's state, and steps skipped."""
    what, skipped, losses = objective(), 0, []
    network, scaler = what.network(what.initial()), torch.amp.GradScaler("cpu")
    parameters = list(network.parameters())
    optimizer = getattr(torch.optim, local.optimizer)(parameters, lr=local.lr)
    for number in range(count):
        before = [parameter.detach().clone() for parameter in parameters]
        total = torch.zeros(())
        for batch in rw.batches(examples(), local.step_size, local.local_steps or 0, number):
            pieces = [tensor.split(local.batch_size or 0) for tensor in (batch.inputs, batch.targets)]
            for inputs, targets in zip(*pieces, strict=True):
                with torch.autocast("cpu", torch.float16):
                    loss = torch.nn.functional.cross_entropy(network(inputs), targets) / local.accumulate
                scaler.scale(loss).backward()
                total += loss.detach()
            scaler.unscale_(optimizer)
            if local.clip_norm:
                torch.nn.utils.clip_grad_norm_(parameters, local.clip_norm)
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < scale
            optimizer.zero_grad()
        losses.append(total.item() / (local.local_steps or 0))
        with torch.no_grad():  # the server subtracts start minus arrived, which rounds
            for parameter, start in zip(parameters, before, strict=True):
                parameter.copy_(start - (start - parameter))
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    return flat, losses, scaler.state_dict(), skipped


@pytest.mark.parametrize("name", but_first(["accumulated", "clipped"], WIDE))
def test_it_is_autocast_with_torchs_scaler_to_the_bit(name: str) -> None:
    state, metrics, carry = rounds(WIDE[name])
    parameters, losses, scaler, skipped = looped(WIDE[name])
    assert torch.equal(state.params["float32"], parameters)
    assert [each["train_loss"] for each in metrics] == losses
    assert sum(each["skipped_steps"] for each in metrics) == skipped
    assert 0 < skipped < 8
    assert carry[SLOT]["float32"][:3].tolist() == [scaler["scale"], scaler["_growth_tracker"], 0.0]


def test_the_scale_changes_as_torchs_does() -> None:
    own, theirs = Scaler(), torch.amp.GradScaler("cpu")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for step in range(4010):
        finite = step not in (0, 1, 1500)
        parameter.grad = torch.tensor([0.0 if finite else float("inf")])
        theirs.scale(torch.zeros(()))
        theirs.step(optimizer)
        theirs.update()
        own.update(finite)
        assert own.scale == theirs.get_scale()
    assert (own.scale, own.good, own.skipped) == (2.0**14, 509, 3)


def test_corrected_maps_add_their_terms_to_unscaled_gradients() -> None:
    """With a force of 0 they are plain local training, and a force has the size that it has in float32."""
    update = [
        Scaled(kind)(replace(objective(), precision="fp16"), objective().initial(), examples(), {}, 0)
        for kind in (LOCAL, rw.FedProx(local_steps=4, batch_size=16, lr=0.001, mu=0.0))
    ]
    assert torch.equal(update[0].direction["float32"], update[1].direction["float32"])
    near = rw.FedProx(local_steps=4, batch_size=16, lr=0.01, mu=90.0)
    given = (objective(), objective().initial(), [(examples(1.0), {}, 0)])
    [half], [full] = HALF(Scaled(near), *given), Mapper()(near, *given)
    assert half.metrics["skipped_steps"] == 0
    torch.testing.assert_close(half.direction["float32"], full.direction["float32"], rtol=0.05, atol=1e-4)


FIELDS = {"rounds": 2, "partitions": 2, "local_steps": 2, "precision": "fp16"}


def test_a_run_is_the_same_on_a_cluster_resumed_and_replayed(train, client) -> None:
    whole = train(**FIELDS)
    train(**FIELDS | {"rounds": 1}, name="short")
    resumed = train(**FIELDS, name="short")
    shared = train(GraphExecutor(client), **FIELDS)
    assert whole.digest == resumed.digest == shared.digest
    assert whole.digest != train(**FIELDS | {"precision": "bf16"}).digest
    assert shared.replay("all", executor="inline").identical


ASKS_FOR_THE_LOSS = {"algorithm": "q_fed_avg"}
SERVED = {"algorithm": "fed_buff", "buffer": 1}  # a parameter server's partitions carry their scale, too


@pytest.mark.parametrize("fields", but_first([ASKS_FOR_THE_LOSS, SERVED], [{"algorithm": "afl"}]))
def test_other_maps_of_local_steps_train_in_float16(fields: dict[str, Any], train) -> None:
    run = train(partitions=2, rounds=2, local_steps=2, precision="fp16", **fields)
    assert run.history()["refused"].sum() == 0
    assert run.replay("all").identical


def test_a_network_of_one_parameter_has_no_place_for_the_scale() -> None:
    small = Objective(ModelSpec("linear", (1,), 1, "float32", seed=0), "mse")
    one = replace(small.initial(), params={"float32": torch.zeros(1)})
    with pytest.raises(rw.UsageError, match="needs a network of two parameters or more; give bf16"):
        Scaled(LOCAL)(small, one, rw.Examples(torch.ones(3, 1), torch.zeros(3)), {}, 0)
