"""How a step of a round is called on a Dask worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from distributed import get_worker, secede, worker_client

from roundweave.storage.errors import RoundweaveError, show_whole
from roundweave.tasks.executors.clusters.workers import report_timing
from roundweave.tasks.rounds.job import Attempt, Job

T = TypeVar("T")


def run_step(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on a worker. From then on the worker's heartbeats report the timing of its maps.

    An error of Roundweave is sent to the client without its cause, which may be a user's and fail to pickle.
    """
    report_timing()
    try:
        return function(*arguments)
    except RoundweaveError as error:
        show_whole(error)
        error.__cause__ = error.__context__ = None
        raise


def reach(attempt: Attempt) -> None:
    """Raise the `StoreError` for which the worker that calls this cannot read or write the store of an attempt."""
    attempt.open().place.make()


def step_aside(function: Callable[..., Any], job: Job, *arguments: Any) -> Any:
    """Call a step that mostly waits for the store. If that is far away, the worker runs other tasks meanwhile."""
    if job.attempt.open().place.at_once > 1:
        secede()
    return run_step(function, job, *arguments)


def step_after(previous: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a step once another one is done: Dask waits for `previous`, and its value is not used."""
    return run_step(function, *arguments)


def elsewhere(function: Callable[[], T]) -> T:
    """Call a function on another worker than the one that calls this; in place if there is no other."""
    here = get_worker().address
    with worker_client() as client:
        others = [worker for worker in client.nthreads() if worker != here]
        if not others:
            return function()
        # The function holds a state and examples: scattering sends them from worker to worker.
        [sent] = client.scatter([function], hash=False)
        called: T = client.submit(run_step, sent, workers=others, allow_other_workers=True, pure=False).result()
        return called
