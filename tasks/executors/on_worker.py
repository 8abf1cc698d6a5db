"""What surrounds a step on a Dask worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from storage.errors import RoundweaveError
from tasks.clusters.watching import tell_pace


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


def step_after(previous: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """The same, once another step is done."""
    return step(function, *arguments)
