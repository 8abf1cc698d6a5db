"""The Prefect flow that trains: it connects the executor, the store and the reports."""

from prefect import State, flow
from prefect.states import Completed

from roundweave.flows.config.algorithms import without_form
from roundweave.flows.config.resolving import Resolved
from roundweave.flows.config.scheduled import Skipped, past_others, with_name
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import Prepared, prepared
from roundweave.flows.reporting.listening import Raises, listening, notify_commit, notify_skip
from roundweave.flows.reporting.progress import rounds_reported, titled
from roundweave.flows.reporting.reporter import reported_step
from roundweave.flows.serving.ahead import started
from roundweave.flows.stored import Run
from roundweave.flows.training.settling import settled
from roundweave.storage.errors import RunBusy
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.runs.names import run_name
from roundweave.tasks.executors.base import Executor

# No `from __future__ import annotations`: Prefect pickles a served flow by value and needs classes as annotations.


TASK_SECONDS = 10.0
"""How long a Prefect task run should last if rounds are short: each task run costs tens of milliseconds."""


@reported_step("rounds", "rounds {first} to {last}")
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


with without_form():  # Prefect makes it again for a deployment, and nothing else needs it

    @flow(name="roundweave-train", persist_result=False)
    def train_flow(config: TrainConfig) -> Run | State[None]:
        """Train from the last committed round of the run of this name up to round `config.rounds`.

        Returns a completed Prefect state named "Skipped" where the configuration says that there is nothing to do.
        """
        return past_others(_train, with_name(config))


def _train(config: TrainConfig) -> Run | State[None]:
    with titled(config.name or run_name(config.address or "")):
        try:
            resolved = settled(config)
        except Skipped as skipped:
            return _skip(str(skipped))
        with started(resolved.config, resolved.config.site_of_each) as executor:
            return train_rounds(resolved, executor)


def train_rounds(resolved: Resolved, executor: Executor) -> Run | State[None]:
    """Create a resolved configuration's run or open it, and train its rounds as the current flow run."""
    config = resolved.config
    try:
        with prepared(resolved, executor) as run:
            commit = run.store.log.read(run.done)
            with rounds_reported(run.store.address, config.rounds, run.done), listening(Raises()):
                while commit.round < config.rounds and not run.job.attempt.stop_reason(commit):
                    seconds = commit.seconds if commit.round > run.done else None
                    rounds = run.window(seconds)
                    if seconds and not config.window:
                        rounds = max(rounds, int(TASK_SECONDS / seconds))
                    last = min(commit.round + rounds, config.rounds)
                    commit = run_rounds(executor, run, commit.round + 1, last, seconds)
    except RunBusy as error:
        if config.on_busy is None:
            raise
        return _skip(f"{error}; skipped, as on_busy says")
    return Run(resolved.address, config.root)


def _skip(why: str) -> State[None]:
    """Say why there is nothing to do; returns the state with which Prefect shows that."""
    notify_skip(why)
    return Completed(name="Skipped", message=why)
