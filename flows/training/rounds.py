"""The rounds of a training, from its resolved configuration to its last commit; Prefect is told by others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from roundweave.flows.config.resolving import Resolved
from roundweave.flows.config.train import Skipped, TrainConfig
from roundweave.flows.preparing.job import Prepared, prepared
from roundweave.flows.reporting.listening import Raises, listening, notify_begin, notify_commit, reported
from roundweave.flows.stored import Run
from roundweave.flows.training.delivering import deliver
from roundweave.flows.training.judging import is_rejected, judge, promote
from roundweave.flows.training.retaining import remove_older
from roundweave.storage.errors import RunBusy
from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.executors.base import Executor

TASK_SECONDS = 10.0
"""How long a Prefect task run should last if rounds are short: each task run costs tens of milliseconds."""


def run_rounds(executor: Executor, run: Prepared, first: int, last: int, seconds: float | None) -> Commit:
    """Run rounds `first` to `last` in windows and return the last commit; stops early if training is to stop.

    `seconds` is the time that the round before took, or None; it decides the size of the first window.
    """
    while True:
        for commit in executor.run(run.job, first, min(first + run.window(seconds) - 1, last)):
            notify_commit(commit, run.job.attempt.rounds)
        run.compare(first, commit)
        run.let_go(commit)
        if commit.round == last or run.job.attempt.stop_reason(commit):
            return commit
        first, seconds = commit.round + 1, commit.seconds


def train_rounds(resolved: Resolved, executor: Executor) -> Run:
    """Create a resolved configuration's run or open it, and train its rounds; raises `Skipped` if it is busy."""
    try:
        with prepared(resolved, executor) as run, listening(Raises()):
            notify_begin(run.store.address)
            if run.done or not is_rejected(run.store):
                reported(partial(_all, run), partial(_train, resolved.config, executor, run))
            judge(resolved.config, run.store.place)
    except RunBusy as error:
        if not resolved.config.on_busy:
            raise
        raise Skipped(f"{error}; skipped, as on_busy says", resolved.address) from error
    trained = Run(resolved.address, resolved.config.root)
    promote(trained, resolved.config)
    deliver(trained, resolved.config)
    remove_older(resolved)
    return trained


def _train(config: TrainConfig, executor: Executor, run: Prepared) -> None:
    commit = run.store.log.read(run.done)
    while commit.round < config.rounds and not run.job.attempt.stop_reason(commit):
        seconds = commit.seconds if commit.round > run.done else None
        rounds = run.window(seconds)
        if seconds and not config.window:
            rounds = max(rounds, int(TASK_SECONDS / seconds))
        first, last = commit.round + 1, min(commit.round + rounds, config.rounds)
        commit = reported(partial(_some, first, last), partial(run_rounds, executor, run, first, last, seconds))


def _all(run: Prepared, function: Callable[[], Any]) -> Any:
    from roundweave.flows.reporting.progress import rounds_reported  # Prefect is slow to import

    with rounds_reported(run.store.address, run.job.attempt.rounds, run.done):
        return function()


def _some(first: int, last: int, function: Callable[[], Any]) -> Any:
    from roundweave.flows.reporting.progress import as_task

    return as_task(first, last, function)
