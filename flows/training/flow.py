"""The Prefect flow that trains: it connects the executor, the store and the reports."""

from prefect import State, flow
from prefect.states import Completed

from roundweave.flows.config.algorithms import without_form
from roundweave.flows.config.scheduled import Skipped, past_others, skipped_if_busy, with_name
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.automatic import settled
from roundweave.flows.preparing.job import Prepared, prepared
from roundweave.flows.reporting.flow_runs import reported_step
from roundweave.flows.reporting.listening import Raises, listening, notify_commit, notify_skip
from roundweave.flows.reporting.progress import rounds_reported, titled
from roundweave.flows.serving.ahead import started_executor
from roundweave.flows.stored import Run
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
        return past_others(_run, with_name(config))


def _run(config: TrainConfig) -> Run | State[None]:
    with titled(config.name or run_name(config.address or "")):
        try:
            return _train(config)
        except Skipped as skipped:
            notify_skip(str(skipped))
            return Completed(name="Skipped", message=str(skipped))


def _train(config: TrainConfig) -> Run:
    with (
        skipped_if_busy(config),
        started_executor(settled, config) as (resolved, executor),
        prepared(resolved, executor) as run,
    ):
        commit = run.store.log.read(run.done)
        config = resolved.config
        with rounds_reported(run.store.address, config.rounds, run.done), listening(Raises()):
            while commit.round < config.rounds and not run.job.attempt.stop_reason(commit):
                seconds = commit.seconds if commit.round > run.done else None
                rounds = run.window(seconds)
                if seconds and not config.window:
                    rounds = max(rounds, int(TASK_SECONDS / seconds))
                last = min(commit.round + rounds, config.rounds)
                commit = run_rounds(executor, run, commit.round + 1, last, seconds)
    return Run(run.store.address, config.root)
