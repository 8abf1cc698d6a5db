"""The attempts of a deployment's flow run: how many there are, the one run that they train, and how long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import FlowRunContext
from prefect.utilities.timeout import timeout

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.reporting.reporter import reporting
from roundweave.storage.errors import TookTooLong
from roundweave.storage.runs.names import is_run, run_address


def attempted(config: TrainConfig) -> TrainConfig:
    """The configuration of the current flow run's attempt: a later one is of the run that an earlier one began.

    Prefect, which makes the attempts, is told of how many there are to be. It learns that from here, since a
    worker imports the flow from its module, where no deployment's options are.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    if flow_run is None:
        return config
    if flow_run.run_count > 1:
        begun = not config.address and is_run(run_address(config.root, flow_run.name))
        return config.model_copy(update={"name": flow_run.name}) if begun else config
    if config.retries:
        tried = {"retries": config.retries, "retry_delay": round(config.retry_delay)}
        policy = flow_run.empirical_policy.model_copy(update=tried)
        with reporting() as reporter:
            reporter.put(lambda client, _: client.update_flow_run(flow_run.id, empirical_policy=policy))
    return config


class _TimeIsUp(TimeoutError):
    """Raised by Prefect in the midst of what is computed."""


@contextmanager
def in_time(seconds: float | None) -> Iterator[None]:
    """A context that ends after so many seconds with `TookTooLong`; what it had open is closed in order."""
    try:
        with timeout(seconds, _TimeIsUp):
            yield
    except _TimeIsUp:
        kept = "committed rounds are kept, and the next run of this name goes on with them"
        raise TookTooLong(f"timeout = {seconds:g} s is over; {kept}") from None
