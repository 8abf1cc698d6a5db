"""The Prefect flow that trains: it connects the executor, the store and the reports."""

from collections.abc import Callable

from prefect import State, flow
from prefect.runtime import flow_run
from prefect.states import Completed

from roundweave.flows.config.algorithms import without_form
from roundweave.flows.config.dates import dated
from roundweave.flows.config.scheduled import past_others, with_name
from roundweave.flows.config.train import Skipped, TrainConfig
from roundweave.flows.reporting.listening import notify_skip
from roundweave.flows.reporting.progress import titled
from roundweave.flows.serving.ahead import started
from roundweave.flows.stored import Run
from roundweave.flows.training.rounds import train_rounds
from roundweave.flows.training.settling import settled
from roundweave.storage.runs.names import run_name

# No `from __future__ import annotations`: Prefect pickles a served flow by value and needs classes as annotations.


with without_form():  # Prefect makes it again for a deployment, and nothing else needs it

    @flow(name="roundweave-train", persist_result=False)
    def train_flow(config: TrainConfig) -> Run | State[None]:
        """Train from the last committed round of the run of this name up to round `config.rounds`.

        Returns a completed Prefect state named "Skipped" where the configuration says that there is nothing to do,
        and one named "Rejected" where its gate did not accept the run.
        """
        # A night that began late is of the day on which it was due, and a retry of its flow run, too.
        return past_others(_train, with_name(dated(config, flow_run.scheduled_start_time)))


def _train(config: TrainConfig) -> Run | State[None]:
    def train() -> Run:
        resolved = settled(config)
        with started(resolved.config, resolved.config.site_of_each) as executor:
            return train_rounds(resolved, executor)

    return as_flow(config.name or run_name(config.address or ""), train)


def as_flow(name: str, function: Callable[[], Run]) -> Run | State[None]:
    """Call a function that trains a run of this name as the current flow run's.

    Returns what it returns, or a completed Prefect state named "Skipped" or "Rejected"; see `train_flow`.
    """
    with titled(name):
        try:
            run = function()
            if run.judgement is None or run.judgement.accepted:
                return run
            return Completed(name="Rejected", message="; ".join(run.judgement.reasons), data=run)
        except Skipped as skipped:
            notify_skip(str(skipped))
            return Completed(name="Skipped", message=str(skipped))
