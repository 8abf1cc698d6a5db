"""The attempts of a deployment's flow run: how many there are, the one run that they train, and how long."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.context import FlowRunContext

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.reporting.reporter import reporting
from roundweave.storage.errors import TookTooLong, UsageError
from roundweave.storage.runs.names import is_run, run_address


def take_up_attempt(config: TrainConfig) -> TrainConfig:
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


class _TimeIsUp(KeyboardInterrupt):
    """Raised in the midst of what is computed, where Ctrl-C would be."""


@contextmanager
def in_time(seconds: float | None) -> Iterator[None]:
    """A context that ends after so many seconds with `TookTooLong`, in order, as Ctrl-C would end it.

    Raises `UsageError` outside of the main thread, where nothing can be interrupted.
    """
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("timeout counts in the main thread of a process; leave it out for this one")
    before = signal.signal(signal.SIGALRM, _end)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeIsUp:
        kept = "committed rounds are kept, and the next run of this name goes on with them"
        raise TookTooLong(f"timeout = {seconds:g} s is over; {kept}") from None
    finally:
        signal.signal(signal.SIGALRM, before)


def _end(*_: Any) -> None:
    raise _TimeIsUp
