"""The Prefect flow that trains: it connects the executor, the store and the reports."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from prefect import State
from prefect.states import Completed

from roundweave.flows.config.algorithms import without_form
from roundweave.flows.config.base import Skipped
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import describe_here
from roundweave.flows.planning.naming import configure, train_past_others
from roundweave.flows.planning.plan import plan_run
from roundweave.flows.reporting.listening import in_flow, listening, notify_skip
from roundweave.flows.reporting.outcomes import RunEnd
from roundweave.flows.reporting.progress import titled
from roundweave.flows.serving.ahead import started
from roundweave.flows.serving.calling import OwnFlow
from roundweave.flows.stored import Run, open_run
from roundweave.flows.training.attempts import in_time, take_up_attempt
from roundweave.flows.training.hooks import around
from roundweave.flows.training.rounds import train_rounds
from roundweave.storage.runs.names import run_name

# No `from __future__ import annotations`: Prefect pickles a served flow by value and needs classes as annotations.


with without_form():  # a deployment makes the form again, and nothing else needs it

    @partial(OwnFlow, name="roundweave-train", persist_result=False)
    def train_flow(config: TrainConfig) -> Run | State[Run]:
        """Train from the last committed round of the run up to round `config.rounds`, and return the run.

        Prefect calls the flow run "Skipped" if the configuration says that there is nothing to do, and "Rejected"
        if the gate did not accept the run.
        """
        with around(config):
            named = configure(take_up_attempt(config))
            return as_flow(named, partial(train_past_others, _train, named))


def _train(config: TrainConfig) -> Run:
    with in_time(config.timeout):
        plan = plan_run(config, opened=open_run)
        described = describe_here(plan)
        with started(plan.config, plan.placement) as executor:
            return train_rounds(plan, described, executor)


def as_flow(config: TrainConfig, function: Callable[[], Run]) -> Run | State[Run]:
    """Call a function that trains a configuration as the current flow run, under the name of the run.

    Returns the result of the function, or a completed Prefect state named "Skipped" or "Rejected"; see
    `train_flow`.
    """
    name = config.name or run_name(config.address or "")
    outcome = RunEnd(name, config.root)
    with titled(name), listening(outcome) if in_flow() else nullcontext():
        try:
            run = function()
        except Skipped as skipped:
            notify_skip(str(skipped))
            return Completed(name="Skipped", message=str(skipped), data=Run(skipped.address, config.root))
        except Exception as error:
            outcome.tell(error)
            raise
        outcome.tell()
        if run.judgement is None or run.judgement.accepted:
            return run
        return Completed(name="Rejected", message="; ".join(run.judgement.reasons), data=run)
