"""Maps on a device: a pretended one has the bits of the processor, and one that does not serve is one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import roundweave as rw
from roundweave.flows.planning.plan import plan_rounds
from roundweave.flows.plugins.device.on_device import OnDevice
from roundweave.tasks.algorithms.maps.backprop import descend
from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.devices import find_device
from tests.flows.command.in_process import refused
from tests.rows import but_first

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="the pretended device is compiled by g++"),
    pytest.mark.usefixtures("without_prefect"),
]

FIELDS = {"rounds": 3, "partitions": 3}
Asked = list[tuple[str, dict[str, Any]]]
On = Callable[[Asked], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> On:
    """Train in a process that knows the device."""

    def trained(asked: Asked, **environment: str) -> list[dict[str, Any]]:
        runs = tmp_path_factory.mktemp("runs")
        line = [sys.executable, "-m", "tests.pretend.trains", str(runs), json.dumps(asked)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=os.environ | environment)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return trained


def twice(executor: str, **fields: Any) -> Asked:
    """A run on the processor, inline, and one on the device."""
    return [("inline", FIELDS | fields), (executor, FIELDS | fields | {"device": "pretend"})]


def assert_equal(told: list[dict[str, Any]]) -> None:
    for here, there in zip(told[::2], told[1::2], strict=True):
        assert (here["digest"], here["losses"]) == (there["digest"], there["losses"])
        assert here["replays"] and there["replays"]


TAIL = """
import torch
class Planted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.scale = torch.ones(10)
    def forward(self, images):
        return self.layer(images.flatten(1)) * self.scale
"""


@pytest.mark.dear("a process of its own, since what knows a device cannot forget it")
def test_a_network_has_the_bits_of_the_processor_and_a_tensor_that_stays_there_is_found(on: On, own) -> None:
    planted = FIELDS | {"device": "pretend", "model": f"{own(TAIL)}:Planted", "held_out": 0}
    *told, last = on([*twice("inline", model="cnn", local_steps=2, batch_size=16), ("inline", planted)])
    assert_equal(told)
    assert last["refused"].startswith("RoundFailed: round 1: 0 of 3 updates are sound")


@pytest.mark.thorough
def test_so_have_stacked_partitions_and_workers(on: On) -> None:
    assert_equal(on([*twice("graph", model="cnn", local_steps=3), *twice("inline", stacked=2, local_steps=2)]))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "graph", "ranks"])
def test_every_algorithm_has_the_bits_of_the_processor_on_every_executor(on: On, executor: str) -> None:
    names = [name for name, p in ALGORITHMS.items() if executor == "inline" or p.when is rw.Synchronous]
    assert_equal(on([run for name in names for run in twice(executor, algorithm=name)]))


@pytest.mark.thorough
def test_a_device_that_is_too_small_is_one_line(on: On) -> None:
    [told] = on([("inline", FIELDS | {"device": "pretend"})], PRETEND_DEVICE_BYTES="10000")
    assert told["refused"].startswith("RoundFailed: pretend:0 has too little memory for this network")


@pytest.mark.parametrize("executor", but_first(["inline"], ["inline", "graph"]))
def test_a_device_that_is_not_there_is_one_line(executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["train", "--device", "pretend", "--executor", executor, "--workers", "1", "--rounds", "1"]
    code, said = refused(capsys, *line)
    assert code == 2
    assert re.fullmatch(
        r"there is no device pretend: process \d+ on \S+ has none; give --device cpu, or auto", said
    )


def test_where_no_worker_has_an_accelerator_auto_takes_the_processor_and_says_so(train, capsys) -> None:
    run = train(**FIELDS, device="auto")
    assert run.config["device"] == "cpu"
    assert "training on cpu: not every process has an accelerator" in capsys.readouterr().err


def test_auto_is_the_processor_where_this_process_has_nothing_else() -> None:
    assert find_device("auto") == torch.device("cpu")


def test_bf16_is_torchs_autocast_around_forward_pass_and_loss() -> None:
    objective = Objective(ModelSpec("mlp", (1, 8, 8), 10, "float32", seed=0), "cross_entropy")
    examples = rw.Examples(torch.randn(64, 1, 8, 8), torch.arange(64) % 10)
    start = objective.initial()
    local = rw.LocalSteps(local_steps=3, lr=0.5, batch_size=None)
    [update] = OnDevice(Mapper(), "bf16", compiled=False)(local, objective, start, [(examples, {}, 0)])

    network = objective.network(start)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(examples.inputs), examples.targets)
        loss.backward()
        descend(list(network.parameters()), 0.5)
    arrived = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    assert torch.equal(update.direction["float32"], start.params["float32"] - arrived)
    [whole] = Mapper()(local, objective, start, [(examples, {}, 0)])
    assert not torch.equal(update.direction["float32"], whole.direction["float32"])


class Threes(rw.Plugin):
    """Has a mapper of its own, which maps three partitions at once."""

    decides = True

    def plan(self, plan: Any) -> Any:
        return plan.fill("threes", mapper=Mapper(at_once=3))


def test_what_a_mapper_of_the_users_does_is_computed_there_too() -> None:
    mapper = plan_rounds(rw.TrainConfig(plugins=[Threes], precision="bf16")).mapper
    assert mapper == OnDevice(Mapper(at_once=3), "bf16", compiled=False, at_once=3)
    with pytest.raises(rw.UsageError, match=r"^threes and stacked both decide the mapper; leave one of them out$"):
        plan_rounds(rw.TrainConfig(plugins=[Threes], stacked=2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
def test_compiled_networks_have_the_same_bits_in_every_process(train, client) -> None:
    """Whatever shapes of batches a process has seen before: three unequal partitions have batches of their own."""
    fields = FIELDS | {"local_epochs": 1, "batch_size": 50, "compiled": True, "split": "proportions:1,2,3"}
    alone = train(**fields)
    shared = train(GraphExecutor(client), **fields)
    assert alone.digest == shared.digest
    assert alone.digest != train(**fields | {"compiled": False}).digest
    assert shared.replay("all", executor="inline").identical
