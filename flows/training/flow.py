"""The flow that trains: it wires the executor, the store and the reports together."""

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from flows.reporting.progress import Progress
from flows.serving.ahead import started
from flows.training.preparing import Prepared, prepared
from storage.rounds.commits import Commit
from storage.runs.run import Run
from tasks.executors.base import Executor
from tasks.rounds.plan import window_size

# No `from __future__ import annotations`: Prefect pickles a served flow by value, where text is no class.


@task(name="rounds", task_run_name="rounds {first} to {last}", cache_policy=NO_CACHE, persist_result=False)
def run_window(executor: Executor, run: Prepared, progress: Progress, first: int, last: int) -> Commit:
    """Run a window of rounds; the last commit that was made."""
    for commit in executor.run(run.job, first, last):
        progress.committed(commit)
    progress.window_done()
    return commit


@flow(name="roundweave-train", persist_result=False)
def train_flow(config: TrainConfig) -> Run:
    """Train in rounds, from the last committed one of the run of this name to `config.rounds`."""
    with started(resolve, config) as (resolved, executor), prepared(resolved, executor) as run:
        progress = Progress(run.name, config.rounds, run.done)
        commit = run.store.log.read(run.done)
        while commit.round < config.rounds and not run.job.attempt.stop_reason(commit):
            size = window_size(config.window, commit.seconds if commit.round > run.done else None)
            last = min(commit.round + size, config.rounds)
            commit = run_window(executor, run, progress, commit.round + 1, last)
        progress.finished(Run(run.store.path))
    return Run(run.store.path)
