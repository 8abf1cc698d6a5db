"""A run of a configuration without Prefect, for the fixture `train` and for processes that tests start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from roundweave import Run, TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.inline import InlineExecutor


def trained(
    root: Path,
    /,
    executor: Executor | None = None,
    window: int = 1,
    on_commit: Callable[[Commit], None] = lambda commit: None,
    **fields: object,
) -> Run:
    """Run a configuration with an executor, window by window."""
    executor = executor or InlineExecutor()
    kind = "inline" if isinstance(executor, InlineExecutor) else "graph"
    config = TrainConfig(**{"root": root, "executor": kind} | fields)
    with prepare(plan(config), executor) as ready:
        first = ready.done + 1
        while first <= config.rounds:
            last = min(first + window - 1, config.rounds)
            for commit in executor.run(ready.job, first, last):
                on_commit(commit)
            ready.compare(first, commit)
            ready.let_go(commit)
            if commit.stop:
                break
            first = last + 1
    return Run(ready.store.address)
