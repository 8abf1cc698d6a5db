"""What surrounds a step on a Dask worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import secede

from storage.errors import RoundweaveError
from tasks.clusters.watching import tell_pace
from tasks.rounds.job import Job


def step(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on a worker, whose heartbeats then tell how maps get on.

    An error of ours travels alone: what it came from is the user's, and may not pickle.
    """
    tell_pace()
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
