"""What takes minutes: many kills at random moments, and the main recipe on MNIST."""

from __future__ import annotations

import os
import random
import signal
import threading

import psutil
import pytest

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from tests.workers import worker_processes

pytestmark = pytest.mark.slow


def kill_now_and_then(done: threading.Event, seed: int) -> None:
    """SIGKILL one or all worker processes of this process's cluster at random moments."""
    draw = random.Random(seed)
    while not done.wait(draw.uniform(1.0, 8.0)):
        workers = worker_processes(psutil.Process())
        for worker in workers if draw.random() < 0.3 else workers[:1]:
            os.kill(worker.pid, signal.SIGKILL)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("window", [1, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_workers_killed_at_random_change_no_bits(train, window, seed) -> None:
    fields = {"partitions": 10, "model_options": {"dropout": 0.3}, "local_steps": 5, "rounds": 40}
    reference = train(**fields, name="reference")
    done = threading.Event()
    with connect(None, 2) as client:
        killer = threading.Thread(target=kill_now_and_then, args=(done, seed))

        def start(commit) -> None:
            if commit.round == 1:
                killer.start()

        try:
            run = train(GraphExecutor(client), window, start, **fields, name="killed")
        finally:
            done.set()
            killer.join()
    assert run.digest == reference.digest


@pytest.mark.timeout(300)
def test_the_main_recipe_passes_97_percent_on_mnist(train, mnist) -> None:
    if mnist == "digits":
        pytest.skip("needs MNIST under ROUNDWEAVE_DATA")
    with connect(None, 2) as client:
        run = train(
            GraphExecutor(client), data=mnist, partitions=10, rounds=8, local_epochs=1, batch_size=32, lr=0.1
        )
    assert run.history()["accuracy"].iloc[8] > 0.97
