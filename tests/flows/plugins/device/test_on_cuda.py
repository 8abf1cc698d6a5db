"""Maps on a real GPU: every algorithm has the same bits in each process, and each replay has them again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import Client

from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.algorithms.when import Synchronous
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

FIELDS = {"rounds": 3, "partitions": 3}
ON_CUDA = FIELDS | {"device": "cuda"}
CNN = {"model": "cnn", "batch_size": 16, "local_steps": 5}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_replays_there_and_is_near_the_processor(train, name: str) -> None:
    there = train(**ON_CUDA, algorithm=name)
    assert there.replay("all").identical
    here = train(**FIELDS, algorithm=name)
    expected, losses = (run.history()["loss"].dropna().tolist() for run in (here, there))
    assert losses == pytest.approx(expected, rel=1e-3)  # they differ by rounding alone


@pytest.mark.parametrize("name", [name for name, preset in ALGORITHMS.items() if preset.when is Synchronous])
def test_every_executor_has_the_same_bits(train, client: Client, name: str) -> None:
    alone = train(**ON_CUDA, algorithm=name)
    for executor in (GraphExecutor(client), RanksExecutor(client)):
        assert train(executor, **ON_CUDA, algorithm=name).digest == alone.digest


@pytest.mark.parametrize(
    "fields",
    [
        CNN,
        CNN | {"precision": "bf16"},
        CNN | {"precision": "fp16"},
        {"stacked": 2, "local_steps": 5},
        CNN | {"optimizer": "AdamW", "optimizer_state": "carried"},
        {"model_options": {"dropout": 0.5}, "local_steps": 5},
        {"score_partitions": 0.2, "local_steps": 2},
    ],
    ids=["cnn", "bf16", "fp16", "stacked", "adamw", "dropout", "scores"],
)
def test_what_is_computed_in_another_way_replays_there_too(train, client: Client, fields: dict[str, Any]) -> None:
    alone = train(**ON_CUDA, **fields)
    assert alone.replay("all").identical
    assert train(GraphExecutor(client), **ON_CUDA, **fields).digest == alone.digest


def test_a_run_goes_on_to_the_same_bits(train) -> None:
    whole = train(**ON_CUDA, name="whole")
    train(**ON_CUDA | {"rounds": 1}, name="parts")
    assert train(**ON_CUDA, name="parts").digest == whole.digest


def test_a_gpu_that_is_too_small_is_one_line(train) -> None:
    torch.cuda.set_per_process_memory_fraction(1e-5)
    try:
        with pytest.raises(Exception, match="cuda:0 has too little memory for this network"):
            train(**ON_CUDA, model_options={"hidden": 20_000})
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
