"""The attempts of a deployment's flow run: their number, their common run, and their time limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import httpx
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentTaskRunId
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.reporting.listening import notice
from roundweave.flows.reporting.reporter import reporting
from roundweave.storage.errors import TookTooLong, UsageError, one_line
from roundweave.storage.runs.names import is_run, run_address


def take_up_attempt(config: TrainConfig) -> TrainConfig:
    """Return the configuration of the current flow run's attempt.

    A later attempt resumes the run of an earlier one.

    Prefect makes the attempts, and learns their number here: a worker imports the flow from its module, which has
    none of the deployment's options.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    if flow_run is None:
        return config
    earlier = [flow_run.name] if flow_run.run_count > 1 else _of_parent(config, flow_run)
    if earlier:
        begun = [name for name in earlier if not config.address and is_run(run_address(config.root, name))]
        return config.model_copy(update={"name": begun[0]}) if begun else config
    if config.retries:
        tried = {"retries": config.retries, "retry_delay": round(config.retry_delay)}
        policy = flow_run.empirical_policy.model_copy(update=tried)
        with reporting() as reporter:
            reporter.put(lambda client, _: client.update_flow_run(flow_run.id, empirical_policy=policy))
    return config


def _of_parent(config: TrainConfig, flow_run: FlowRun) -> list[str]:
    """Return the names of the runs, the newest first, that earlier attempts of the parent began as this subflow.

    A configuration with a name needs none of them.
    """
    if config.name or flow_run.parent_task_run_id is None:
        return []
    same = FlowRunFilter(parent_task_run_id=FlowRunFilterParentTaskRunId(any_=[flow_run.parent_task_run_id]))
    try:
        with get_client(sync_client=True) as client:
            found = client.read_flow_runs(flow_run_filter=same)
    except httpx.HTTPError as error:
        notice(f"Prefect does not report the run of an earlier attempt ({one_line(error)}); a new run begins")
        return []
    others = [each for each in found if each.id != flow_run.id and each.created]
    return [each.name for each in sorted(others, key=attrgetter("created"), reverse=True)]


class _TimeIsUp(KeyboardInterrupt):
    """Raised in the middle of a computation, like Ctrl-C."""


@contextmanager
def in_time(seconds: float | None) -> Iterator[None]:
    """End this context with `TookTooLong` after so many seconds, in order, as Ctrl-C ends it.

    Raises `UsageError` outside of the main thread, where nothing can be interrupted.
    """
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("timeout works in the main thread of a process alone; leave it out")
    before = signal.signal(signal.SIGALRM, _end)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeIsUp:
        kept = "committed rounds are kept, and the next run of this name continues them"
        raise TookTooLong(f"timeout = {seconds:g} s is over; {kept}") from None
    finally:
        signal.signal(signal.SIGALRM, before)


def _end(*_: Any) -> None:
    raise _TimeIsUp
