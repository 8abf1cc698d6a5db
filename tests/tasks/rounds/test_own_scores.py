"""A partition's own score is of the network that it uses: the common one, its own, or with a head of its own."""

from __future__ import annotations

import pytest
import torch

import roundweave as rw
from roundweave.flows.command import app
from roundweave.flows.config.recorded import recorded_config
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.tasks.data.description import gather_here
from tests.rows import but_first

SOURCE = """
from dataclasses import dataclass, replace
import roundweave as rw

@dataclass(frozen=True)
class Personal(rw.LocalSteps):
    slot: str = ""

    @property
    def carry(self):
        return (self.slot,)

    def __call__(self, objective, state, examples, carry, seed):
        start, specs = {k: v.clone() for k, v in state.params.items()}, objective.layout.params
        for name, tensor in rw.views(specs, start).items():
            if carry and (self.slot == "own" or name.startswith("fc2.")):
                tensor.copy_(rw.views(specs, carry[self.slot])[name])
        update = self.walk(objective, replace(state, params=start), examples, seed)
        arrived = {k: start[k] - moved for k, moved in update.direction.items()}
        return replace(update, carry={self.slot: arrived})

def algorithm(*, slot: str = "own"):
    return rw.Algorithm(Personal(local_steps=10, lr=0.2, slot=slot), rw.Mean(), rw.Sgd(lr=0.5))
"""
FIELDS = {
    "data": "digits",
    "split": "shards:2",
    "score_partitions": 0.3,
    "model_options": {"hidden": 8},
    "rounds": 2,
}
OWN = "each partition's own network, carried as own"
ROWS = [("own", ("fc1", "fc2"), OWN), ("head", (), "the network that all share")]


@pytest.mark.parametrize(("slot", "held", "said"), but_first([("own.fc2", ("fc2",), f"{OWN}.fc2")], ROWS))
def test_it_is_of_the_layers_that_the_partition_carries(train, own, slot, held, said, monkeypatch, capsys) -> None:
    """And else of the common ones."""
    run = train(algorithm=f"{own(SOURCE)}:algorithm", slot=slot, name="personal", cohort=3, **FIELDS)
    root = run.address.rpartition("/")[0]
    partitions = describe(plan(recorded_config(run, root, True, {})), gather_here).partitions
    took_part = [*run.round(2).commit.updates]
    scored = run.ds["own_accuracy"].sel(round=2).values
    for partition in took_part:
        network, sent = run.network(), run.round(2).update_tensors(partition)
        carried = {name: sent[f"carry/{slot}/{name}"] for name, _ in network.named_parameters()}
        network.load_state_dict({n: t for n, t in carried.items() if held and n.startswith(held)}, strict=False)
        examples = partitions.own_part(partition, 0)
        with torch.no_grad():
            hits = network(examples.inputs).argmax(1) == examples.targets
        assert scored[partition] == pytest.approx(hits.double().mean().item(), abs=1e-12)
    monkeypatch.setattr("sys.argv", ["roundweave", "show", "personal", "--root", root])
    with pytest.raises(SystemExit):
        app.main()
    assert f"own scores of {said}\n" in capsys.readouterr().out


def test_a_layer_that_is_not_there_is_named(train, own) -> None:
    with pytest.raises(rw.UsageError, match=r"the map carries own.fc3, and the network has no such layer"):
        train(algorithm=f"{own(SOURCE)}:algorithm", slot="own.fc3", **FIELDS)


def test_the_partitions_of_a_server_are_scored_with_its_network(train) -> None:
    run = train(algorithm="easgd", local_steps=5, **{**FIELDS, "rounds": 8}, evaluate_every=8)
    scored = run.ds["own_accuracy"].sel(round=8).values
    partitions = describe(
        plan(recorded_config(run, run.address.rpartition("/")[0], True, {})), gather_here
    ).partitions
    for partition in run.round(8).commit.updates:
        examples = partitions.own_part(partition, 0)
        with torch.no_grad():
            hits = run.network()(examples.inputs).argmax(1) == examples.targets
        assert scored[partition] == pytest.approx(hits.double().mean().item(), abs=1e-12)
