"""Runs flows with Prefect's engine, and without it where Prefect's server dies, hangs or cannot be reached."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

from prefect import Flow, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext, SyncClientContext
from prefect.exceptions import PrefectSignal, TerminationSignal
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

from flows.reporting.listening import notice
from flows.reporting.reporter import ANSWER_SECONDS, INTERRUPTED_SECONDS, Reporter, patience_after, reporting
from flows.reporting.unofficial import screen_handlers, wait_less
from storage.errors import one_line

P = ParamSpec("P")
T = TypeVar("T")


def step(name: str, run_name: str | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: the function runs as a Prefect task inside a flow run, and as a plain function elsewhere.

    `run_name` is a template of the task run's name that is filled with the function's arguments.
    """

    def made(function: Callable[P, T]) -> Callable[P, T]:
        tracked = task(name=name, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False)(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return (tracked if FlowRunContext.get() else function)(*args, **kwargs)

        return call

    return made


def run_flow(flow: Flow[[Any], T], config: Any) -> T:
    """Run a flow and return or raise what its function does, even if Prefect's server fails meanwhile.

    Where no Prefect API is set or it cannot be reached, the function runs without Prefect.
    """
    if not PREFECT_API_URL.value():
        return flow.fn(config)
    with hushed():
        with reporting() as reporter:
            body = _Body(flow, reporter)
            try:
                body.run(config)
            except (Exception, PrefectSignal) as error:  # noqa: BLE001 - Prefect's, of which nothing may depend
                unreached = error
                if body.began and error is not body.error:
                    reporter.lose(error)
            if body.began:
                return body.result()
        reason = one_line(unreached.__cause__ or unreached)
        notice(
            f"Prefect at {PREFECT_API_URL.value()} cannot be reached ({reason}), so nothing is reported; "
            "start it, or set PREFECT_API_URL to another"
        )
        return flow.fn(config)


class _Body(Generic[T]):
    """Runs a flow's function in Prefect's engine and remembers its own value or error.

    The engine may fail for reasons of its own, such as a lost server, that say nothing about the function.
    """

    def __init__(self, flow: Flow[[Any], T], reporter: Reporter) -> None:
        self.flow = copy(flow)
        self.flow.fn = self._remembering(flow.fn)
        self.reporter = reporter
        self.began = False
        self.error: BaseException | None = None
        self.value: T | None = None

    def run(self, config: Any) -> None:
        """Run the flow in the engine, with a Prefect client that gives up quickly on a silent server."""
        patience = {PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: ANSWER_SECONDS}
        with temporary_settings(patience), SyncClientContext() as context:
            self.client = context.client
            self.flow(config)

    def result(self) -> T:
        """Return what the function returned, or raise what it raised; a termination as `KeyboardInterrupt`."""
        if isinstance(self.error, TerminationSignal):
            raise KeyboardInterrupt from self.error
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    def _remembering(self, function: Callable[[Any], T]) -> Callable[[Any], T]:
        """The function, made to leave its value or its error in this object."""

        @wraps(function)
        def call(config: Any) -> T:
            self.began = True
            try:
                self.value = function(config)
            except BaseException as error:
                self.error = error
                self._hurry_if_silent(patience_after(error))
                raise
            self._hurry_if_silent(ANSWER_SECONDS)
            return self.value

        return call

    def _hurry_if_silent(self, seconds: float) -> None:
        """Shorten the engine's own wait at the flow's end if the server took no report for so many seconds."""
        if not self.reporter.flush(seconds):
            wait_less(self.client, INTERRUPTED_SECONDS)


@contextmanager
def hushed() -> Iterator[None]:
    """Keep Prefect's own log lines off the screen; its pages still show them.

    They stay on the screen if the user has set PREFECT_LOGGING_LEVEL.
    """
    with nullcontext() if "PREFECT_LOGGING_LEVEL" in os.environ else filtered(_of_others):
        yield


@contextmanager
def filtered(wanted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """While the context is open, Prefect's screen handlers print only log records for which `wanted` is true."""
    handlers = screen_handlers()
    for handler in handlers:
        handler.addFilter(wanted)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(wanted)


def without_dask(record: logging.LogRecord) -> bool:
    """Whether a log record is anything but routine information from Dask."""
    return record.levelno > logging.INFO or not record.name.startswith("distributed.")


def _of_others(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] not in ("prefect", "EventsWorker", "APILogWorker")
