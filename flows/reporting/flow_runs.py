"""Runs flows with Prefect's engine, and without it where Prefect's server dies, hangs or cannot be reached."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from httpx import HTTPStatusError
from prefect import Flow, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectSignal, TerminationSignal
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from roundweave.flows.reporting.listening import notice
from roundweave.flows.reporting.reporter import Reporter, reporting
from roundweave.flows.reporting.unofficial import client_context, screen_handlers
from roundweave.storage.errors import RoundweaveError, one_line

P = ParamSpec("P")
T = TypeVar("T")


def reported_step(name: str, run_name: str | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
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


def run_flow(flow: Flow[[Any], Any], config: Any, function: Callable[[], T]) -> T:
    """Call a function as a run of a flow with this configuration, even if Prefect's server fails meanwhile.

    It takes the place of the flow's own function, which would resolve the configuration and start an executor
    again. Where no Prefect API is set or it cannot be reached, it is called without Prefect. Prefect's own log
    lines stay off the screen unless the user has set PREFECT_LOGGING_LEVEL; its pages show them in any case.
    """
    api = PREFECT_API_URL.value() or ("its temporary server" if FlowRunContext.get() else "")
    if not api:
        return function()
    outcome: Future[T] = Future()
    with nullcontext() if "PREFECT_LOGGING_LEVEL" in os.environ else filtered(_not_of_prefect):
        with reporting() as reporter:
            try:
                _run_in_engine(flow, config, function, outcome, reporter)
            except (Exception, PrefectSignal) as error:  # noqa: BLE001 - Prefect's, of which nothing may depend
                unreached = error
                if outcome.done() and error is not outcome.exception():
                    reporter.lose(error)
            if outcome.done():
                if isinstance(outcome.exception(), TerminationSignal):
                    raise KeyboardInterrupt from outcome.exception()
                return outcome.result()
        reason = one_line(cause := unreached.__cause__ or unreached)
        answered = isinstance(cause, HTTPStatusError)
        advice = "" if answered else "; start it, or set PREFECT_API_URL to another"
        what = "does not take the run" if answered else "cannot be reached"
        notice(f"Prefect at {api} {what} ({reason}), so nothing is reported{advice}")
        return function()


def _run_in_engine(
    flow: Flow[[Any], Any], config: Any, function: Callable[[], T], outcome: Future[T], reporter: Reporter
) -> None:
    """Call a function as a flow's in Prefect's engine, whose client asks a silent server no more.

    `outcome` gets what the function returns or raises. The engine itself may fail for reasons that say
    nothing about the function, such as a lost server.
    """

    @wraps(flow.fn)
    def called(config: Any) -> T:
        beginning.close()
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)
            raise
        finally:
            reporter.flush()
        return outcome.result()

    observed = copy(flow)
    observed.fn = called
    once_more = temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1})
    hooks = {"event_hooks": {"request": [reporter.check_answering]}}
    with once_more, client_context(reporter.httpx_settings | hooks), ExitStack() as beginning:
        beginning.enter_context(reporter.writing_alone())
        observed(config)


@contextmanager
def filtered(wanted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """While the context is open, Prefect's screen handlers print only log records for which `wanted` is true."""
    handlers, own = screen_handlers(), partial(wanted)  # others may filter by the same function at once
    for handler in handlers:
        handler.addFilter(own)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(own)


def without_dask(record: logging.LogRecord) -> bool:
    """Whether a log record is anything but routine information from Dask."""
    return record.levelno > logging.INFO or not record.name.startswith("distributed.")


def _in_one_line(record: logging.LogRecord) -> bool:
    """Replace the traceback of an error of Roundweave's by its line; the record is logged in any case."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, RoundweaveError):
        record.msg, record.args, record.exc_info = str(error), (), None
    return True


for _kind in ("flow_runs", "task_runs"):
    logging.getLogger(f"prefect.{_kind}").addFilter(_in_one_line)


def _not_of_prefect(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] not in ("prefect", "EventsWorker", "APILogWorker")
