"""The flow that trains: it wires the executor, the store and the reports together."""

from prefect import flow

from flows.config.train import TrainConfig
from flows.planning.automatic import settled
from flows.preparing.job import Prepared, prepared
from flows.reporting.engine import step
from flows.reporting.listening import tell_commit
from flows.reporting.progress import rounds_reported
from flows.serving.ahead import started
from flows.stored import Run
from storage.rounds.commits import Commit
from tasks.executors.base import Executor

# No `from __future__ import annotations`: Prefect pickles a served flow by value, where text is no class.


@step("rounds", "rounds {first} to {last}")
def run_window(executor: Executor, run: Prepared, first: int, last: int) -> Commit:
    """Run a window of rounds; the last commit that was made."""
    for commit in executor.run(run.job, first, last):
        tell_commit(commit, run.job.attempt.rounds)
    return commit


@flow(name="roundweave-train", persist_result=False)
def train_flow(config: TrainConfig) -> Run:
    """Train in rounds, from the last committed one of the run of this name to `config.rounds`."""
    with started(settled, config) as (resolved, executor), prepared(resolved, executor) as run:
        commit = run.store.log.read(run.done)
        config = resolved.config
        with rounds_reported(run.store.address, config.rounds, run.done):
            while commit.round < config.rounds and not run.job.attempt.stop_reason(commit):
                seconds = commit.seconds if commit.round > run.done else None
                last = min(commit.round + run.window(config.window, seconds), config.rounds)
                commit = run_window(executor, run, commit.round + 1, last)
                run.let_go(commit)
    return Run(run.store.address, config.root)
