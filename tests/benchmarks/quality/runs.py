"""What the benchmarks of quality train: runs that are deleted, of which the accuracies stay."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.tasks.data.loading import Partition
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.outcomes import read_outcome
from roundweave.tasks.rounds.steps import BlockResult, Outcome, fold_block, map_groups, reduce_apply
from tests.training import trained

Curve = list[float]
"""Held-out accuracies after each round that was scored, until the target or the last."""


def curve(executor: Executor | None = None, window: int = 1, **fields: Any) -> Curve:
    """Train one run."""
    with tempfile.TemporaryDirectory() as root:
        history = trained(Path(root), executor, window, **fields).history()
    return [float(accuracy) for accuracy in history["accuracy"].iloc[1:].dropna()]


def pure_rounds(job: Job, data: Mapping[int, Partition], rounds: int) -> Iterator[Outcome]:
    """The outcomes of synchronous rounds by the pure steps alone: nothing is digested or written."""
    outcome = read_outcome(job, 0)
    for _ in range(rounds):
        groups = map_groups(job.work, outcome.state, [(p, part, {}) for p, part in data.items()])
        mapped = [each for group in groups for each in group]
        updates = {each.partition: each.update for each in mapped}
        records = {each.partition: UpdateRecord("", each.update.weight, each.refused) for each in mapped}
        nodes = fold_block(job.work, outcome.state.round + 1, [job.plan.root], updates)
        outcome = reduce_apply(job.work, outcome, [BlockResult(nodes, records)])
        yield outcome
