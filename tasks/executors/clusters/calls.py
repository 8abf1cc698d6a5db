"""How a worker calls the steps of rounds: their timing is reported, their errors are sent, and late maps end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from distributed import Future, get_worker, secede, wait, worker_client

from roundweave.storage.errors import RoundweaveError, show_whole
from roundweave.tasks.algorithms.maps.backprop import IS_LET_GO
from roundweave.tasks.executors.clusters.workers import LOOK_SECONDS, report_timing
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.timing import ATTEMPT

T = TypeVar("T")


def itself(value: Any) -> Any:
    return value


def run_step(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on a worker. From then on the worker's heartbeats report the timing of its maps.

    An error of Roundweave is sent to the client without its cause, which may be a user's and fail to pickle.
    """
    report_timing()
    token = ATTEMPT.set(next((each.attempt.token for each in arguments if isinstance(each, Job)), ""))
    try:
        return function(*arguments)
    except RoundweaveError as error:
        show_whole(error)
        error.__cause__ = error.__context__ = None
        raise
    finally:
        ATTEMPT.reset(token)


def run_until_let_go(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a step that maps. It raises `MapAbandoned` at a batch once the scheduler has let its task go."""
    tasks, key = get_worker().state.tasks, get_worker().get_current_task()
    token = IS_LET_GO.set(lambda: key not in tasks or tasks[key].state == "cancelled")
    try:
        return run_step(function, *arguments)
    finally:
        IS_LET_GO.reset(token)


def run_pure(function: Callable[..., Any], job: Job, *arguments: Any) -> Any:
    """Call a step that needs of a job nothing but its work."""
    return run_step(function, job.work, *arguments)


def step_aside(function: Callable[..., Any], job: Job, *arguments: Any) -> Any:
    """Call a step that mostly waits for the store. If that is far away, the worker runs other tasks meanwhile."""
    if job.attempt.open().place.at_once > 1:
        secede()
    return run_step(function, job, *arguments)


def step_after(previous: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a step once another one is done: Dask waits for `previous`, and its value is not used."""
    return run_step(function, *arguments)


def elsewhere(function: Callable[[], T]) -> T:
    """Call a function on another worker than the one that calls this; in place if there is no other.

    Dask must not choose: it would give the function back to this worker while all others are busy.
    """
    here = get_worker().address
    with worker_client() as client:
        while others := client.nthreads().keys() - {here}:
            # The function holds a state and examples: scattering sends them from worker to worker.
            [sent] = client.scatter([function], hash=False)
            answer: Future[T] = client.submit(run_step, sent, workers=[*others], pure=False)
            while not answer.done() and others & client.nthreads().keys():
                with suppress(TimeoutError):
                    wait([answer], timeout=LOOK_SECONDS)
            if answer.done():
                return answer.result()
        return function()
