"""What users' functions draw from Python's `random` on workers of Dask that send messages meanwhile."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pytest
from distributed import Client

import roundweave as rw
from roundweave.tasks.executors.graph import GraphExecutor
from tests.conftest import Train

SHAKEN = """
import random
import time
import numpy as np
import torch

def shake(picture):
    columns = [*range(picture.shape[-1])]
    random.shuffle(columns)
    return picture[..., columns].roll(random.randrange(8), -1) * (random.random() + random.gauss(0, 1))

def data():
    random.seed(3)
    time.sleep(1)
    rows = [[random.random() for _ in range(8)] for _ in range(200)]
    return np.array(rows, np.float32), np.arange(200) % 2

def model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 2))
"""


@pytest.fixture
def busy(client: Client) -> Iterator[Client]:
    """A cluster whose workers are sent messages so large that Dask draws which bytes of them it tries."""
    ended = threading.Event()

    def send() -> None:
        while not ended.is_set():
            # A worker that a test before has killed may only now be found gone.
            client.run(bytes, os.urandom(200_000), on_error="ignore")

    with client.as_current():
        thread = threading.Thread(target=send)
        thread.start()
        yield client
        ended.set()
        thread.join()


def moved_on() -> bool:
    """Whether another thread draws from Python's generator within some seconds."""
    state = random.getstate()
    for _ in range(100):
        threading.Event().wait(0.02)
        if random.getstate() != state:
            return True
    return False


@pytest.mark.dear("a cluster that is sent messages all the time, where replays once differed")
@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_every_round_replays_whose_transform_draws_from_pythons_random(
    own, train: Train, busy, rounds: int
) -> None:
    workers = busy.scheduler_info()["workers"]
    assert all(busy.gather([busy.submit(moved_on, workers=one, pure=False) for one in workers])), "they are busy"
    file = own(SHAKEN)
    fields = {"data": "digits", "transform": f"{file}:shake", "algorithm": "fed_avg", "lr": 0.1}
    run = train(GraphExecutor(busy), rounds, **fields, local_steps=4, partitions=4, rounds=rounds)
    replay = rw.open_run(run.path).replay("all", trust=True, executor="inline")
    assert [result.status for result in replay.results] == ["bit-identical"] * rounds


@pytest.mark.thorough
def test_data_that_seed_pythons_random_themselves_are_the_same_on_each_worker(own, train: Train, busy) -> None:
    file = own(SHAKEN)
    fields = {"data": f"{file}:data", "model": f"{file}:model", "partitions": 4, "rounds": 2}
    assert train(GraphExecutor(busy), **fields).digest == train(**fields).digest
