"""Fixtures: a run whose updates arrive in an order that the test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from roundweave import Run, TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.rounds.commits import InFlight
from roundweave.tasks.algorithms.when import Asynchronous, Draw, Order, ServerRound
from roundweave.tasks.executors.inline import InlineExecutor

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
            list(executor.run(replace(ready.job, order=Given(partitions)), 1, rounds))
        return Run(ready.store.address)

    return run
