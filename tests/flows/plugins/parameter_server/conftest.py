"""Fixtures: runs in an order that the test gives, and what proves a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from roundweave import Run, TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.plugins.parameter_server.arrivals import Arrivals
from roundweave.flows.plugins.parameter_server.orders import Draw, Order, ServerRound
from roundweave.flows.training.job import prepare
from roundweave.storage.rounds.commits import InFlight
from roundweave.tasks.algorithms.when import Asynchronous
from roundweave.tasks.executors.inline import InlineExecutor
from tests.contracts.test_executors import kind, make  # noqa: F401 - fixtures

Serve = Callable[..., Run]


@dataclass(frozen=True)
class Given(Order):
    """These partitions one after the other, again and again; each goes on from the round in which it lands."""

    partitions: tuple[int, ...]

    def rounds(
        self, when: Asynchronous, first: int, in_flight: Mapping[int, InFlight], draw: Draw = None
    ) -> Iterator[ServerRound]:
        """One partition a round."""
        for round in count(first):
            partition = self.partitions[(round - 1) % len(self.partitions)]
            yield ServerRound((partition,), frozenset({partition}))


@pytest.fixture
def served(tmp_path: Path) -> Serve:
    """Run a configuration inline, in the order in which these partitions arrive."""

    def run(*partitions: int, rounds: int, **fields: object) -> Run:
        executor = InlineExecutor()
        config = TrainConfig(root=tmp_path / "runs", executor="inline", rounds=rounds, **fields)
        with prepare(plan(config), executor) as ready:
            work = replace(ready.job.work, schedule=Arrivals(Given(partitions)))
            list(executor.run(replace(ready.job, work=work), 1, rounds))
        return Run(ready.store.address)

    return run


@pytest.fixture
def proven(train: Callable[..., Run]) -> Callable[..., None]:
    """A run is sound, its rounds replay, and its recorded order gives the same run without a cluster."""
    from tests.flows.plugins.parameter_server.proving import prove  # which imports Dask

    return partial(prove, train)


@pytest.fixture
def deeds(fields) -> dict[str, object]:
    """An experiment of three partitions, whose maps do what files beside its code say."""
    return {name: fields[name] for name in ("data", "model", "held_out")} | {"partitions": 3}
