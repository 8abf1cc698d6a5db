"""What surrounds a step on a Dask worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from distributed import get_worker, secede, worker_client

from storage.errors import RoundweaveError
from tasks.clusters.workers import report_timing
from tasks.rounds.job import Job

T = TypeVar("T")


def step(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on a worker, whose heartbeats then tell how maps get on.

    An error of ours travels alone: what it came from is the user's, and may not pickle.
    """
    report_timing()
    try:
        return function(*arguments)
    except RoundweaveError as error:
        error.__cause__ = error.__context__ = None
        raise


def step_aside(function: Callable[..., Any], job: Job, *arguments: Any) -> Any:
    """The same for a step that waits for the store: where that is far away, the worker goes on with others."""
    if job.attempt.open().place.at_once > 1:
        secede()
    return step(function, job, *arguments)


def step_after(previous: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """The same, once another step is done."""
    return step(function, *arguments)


def elsewhere(function: Callable[[], T]) -> T:
    """Within a step, call a function on another worker, where there is one."""
    here = get_worker().address
    with worker_client() as client:
        others = [worker for worker in client.nthreads() if worker != here]
        if not others:
            return function()
        # It has a state and examples with it, which go from worker to worker.
        [sent] = client.scatter([function], hash=False)
        called: T = client.submit(step, sent, workers=others, allow_other_workers=True, pure=False).result()
        return called
