"""The rounds of a training, from its plan to its last commit. Other modules report to Prefect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import Described
from roundweave.flows.planning.plan import Plan
from roundweave.flows.reporting.listening import Raises, listening, notice, notify_begin, notify_commit, reported
from roundweave.flows.stored import Run
from roundweave.flows.training.hooks import Hooks
from roundweave.flows.training.job import Prepared, prepare
from roundweave.storage.errors import cut
from roundweave.storage.rounds.columns import read_columns
from roundweave.storage.rounds.commits import JUDGEMENT, Commit, read_section, write_section
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.names import is_run, run_name
from roundweave.tasks.executors.base import Executor

TASK_SECONDS = 10.0
"""The seconds of a Prefect task run if rounds are short. Each task run costs tens of milliseconds."""


def run_rounds(
    executor: Executor, run: Prepared, hooks: Hooks, first: int, last: int, seconds: float | None
) -> Commit:
    """Run rounds `first` to `last` in windows, and return the last commit. A stop ends the loop early.

    `seconds` is the time of the round before, or None. It decides the size of the first window.
    """
    while True:
        rounds = 1 if hooks.may_end or (run.sampler and run.sampler.sees) else run.window(seconds)
        until = min(first + rounds - 1, last)
        for commit in executor.run(run.job_of(first, until), first, until):
            notify_commit(commit, run.job.attempt.rounds)
            hooks.committed(commit, run.job.attempt.rounds)
        run.compare(first, commit)
        run.let_go(commit)
        if commit.round == last or hooks.over or run.job.attempt.stop_reason(commit):
            return commit
        first, seconds = commit.round + 1, commit.seconds


def train_rounds(plan: Plan, described: Described | None, executor: Executor) -> Run:
    """Create or open a planned run, and train its rounds. Raises `Skipped` if a plugin says so.

    The executor describes the examples, unless they are `described` already.
    """
    config, hooks = plan.config, Hooks(plan.plugins, plan.address, plan.config.root)
    try:
        with prepare(plan, executor, described) as run, listening(Raises(run.job.work.partitions.called)):
            notify_begin(run.store.address)
            hooks.began(config.rounds)
            if run.done or not is_rejected(run.store):
                reported(partial(_all, run), partial(_train, config, executor, run, hooks))
            hooks.seal()
    except BaseException as error:
        if is_run(plan.address):
            hooks.ended(error)
        raise
    return hooks.ended(None)


def is_rejected(store: RoundStore) -> bool:
    """Tell whether a run without rounds is rejected for its examples.

    The rejection stays when the run is resumed.
    """
    chain = store.log.chain(0)
    judged = read_section(store.place, JUDGEMENT, 0, chain) if store.has_sections else None
    if judged is None and (record := read_columns(store.place, store.attributes)) and record.refusals:
        judged = {"accepted": False, "reasons": cut(record.refusals, 100)}
        write_section(store.place, JUDGEMENT, 0, chain, judged)
        notice(f"{run_name(store.address)} is rejected before it trains, as its examples are refused")
    return judged is not None and not judged["accepted"]


def _train(config: TrainConfig, executor: Executor, run: Prepared, hooks: Hooks) -> None:
    commit = run.store.log.read(run.done)
    if commit.round < config.rounds and not commit.stop and (why := run.job.attempt.stop_reason(commit)):
        hooks.stop_at_once(commit, why)
    while commit.round < config.rounds and not (hooks.over or run.job.attempt.stop_reason(commit)):
        seconds = commit.seconds if commit.round > run.done else None
        rounds = run.window(seconds)
        if seconds and not config.window:
            rounds = max(rounds, int(TASK_SECONDS / seconds))
        first, last = commit.round + 1, min(commit.round + rounds, config.rounds)
        commit = reported(
            partial(_some, first, last), partial(run_rounds, executor, run, hooks, first, last, seconds)
        )


def _all(run: Prepared, function: Callable[[], Any]) -> Any:
    from roundweave.flows.reporting.progress import rounds_reported  # Prefect is slow to import

    with rounds_reported(run.store.address, run.job.attempt.rounds, run.done):
        return function()


def _some(first: int, last: int, function: Callable[[], Any]) -> Any:
    from roundweave.flows.reporting.progress import as_task

    return as_task(first, last, function)
