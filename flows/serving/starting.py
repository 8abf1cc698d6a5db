"""Which executor a flow uses: one that was started ahead of it, else its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flows.config.train import Placement
from tasks.executors.base import Executor
from tasks.executors.choice import open_executor

_ahead: ContextVar[Executor | None] = ContextVar("ahead", default=None)


@contextmanager
def executor_ahead(config: Placement) -> Iterator[None]:
    """Start the executor, and let flows find it: a cluster comes up while Prefect's server does."""
    with open_executor(config.executor, config.scheduler, config.workers) as executor:
        token = _ahead.set(executor)
        try:
            yield
        finally:
            _ahead.reset(token)


@contextmanager
def executor_for(config: Placement) -> Iterator[Executor]:
    """The executor that was started ahead, else a new one."""
    ahead = _ahead.get()
    if ahead is not None:
        yield ahead
        return
    with open_executor(config.executor, config.scheduler, config.workers) as executor:
        yield executor
