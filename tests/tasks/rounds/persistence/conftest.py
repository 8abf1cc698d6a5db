"""Fixtures: runs whose states are made again, on workers too, and runs that are cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from distributed import Client

from roundweave import Run, TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.persistence import outcomes

SMALL = {"model": "mlp", "model_options": {"hidden": 6}, "partitions": 3, "held_out": 0.5, "batch_size": 8}


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    outcomes.REMEMBERED.clear()


@pytest.fixture
def workers(client: Client) -> Iterator[GraphExecutor]:
    """Two of them; replays on a graph take the same."""
    with client.as_current():
        yield GraphExecutor(client)


@pytest.fixture
def cut_short(tmp_path: Path) -> Callable[..., Run]:
    """Train so many of the rounds that a window has, and leave the rest."""

    def cut(committed: int, **fields: object) -> Run:
        config, executor = TrainConfig(**fields, root=tmp_path / "runs", executor="inline"), InlineExecutor()
        with prepare(plan(config), executor) as ready:
            made = executor.run(ready.job, ready.done + 1, config.rounds)
            list(islice(made, committed - ready.done))
        outcomes.REMEMBERED.clear()
        return Run(ready.store.address)

    return cut


def stored_states(run: Run) -> list[int]:
    """The rounds whose state lies there."""
    path = next(path for path in run._store.schema.state(1) if path.startswith("params/"))
    return sorted(map(int, run._store.place.names(f"{path}/c")))
