"""Flow runs of Prefect, and reports to them from a thread of its own, so that training never waits for the server.

Prefect's own events and log lines are sent by this thread too, through hooks made for Prefect's process pools.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from copy import copy
from functools import partial, wraps
from itertools import islice, takewhile
from typing import Any, ParamSpec, TypeVar

import httpx
from prefect import Flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectSignal, TerminationSignal
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from pydantic import BaseModel

from roundweave.flows.reporting.listening import notice
from roundweave.flows.reporting.unofficial import client_context, give_back, screen_handlers, take_over
from roundweave.storage.errors import RoundweaveError, one_line
from roundweave.tasks.executors.base import shared
from roundweave.tasks.own_code.code import Code

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
        reason = one_line(unreached.__cause__ or unreached)[:LONGEST]
        advice = "mend it, or set PREFECT_API_URL to another"
        notice(f"Prefect at {api} does not accept the run ({reason}), so nothing is reported; {advice}")
        return function()


def _run_in_engine(
    flow: Flow[[Any], Any], config: Any, function: Callable[[], T], outcome: Future[T], reporter: Reporter
) -> None:
    """Call a function as a flow's in Prefect's engine, whose client asks a silent server no more.

    `outcome` gets what the function returns or raises. The engine itself may fail for reasons that say
    nothing about the function, such as a lost server.
    """

    @wraps(flow.fn)
    def in_engine(config: Any) -> T:
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
    observed.fn = in_engine
    once_more = temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1})
    hooks = {"event_hooks": {"request": [reporter.check_answering]}}
    with once_more, client_context(reporter.httpx_settings | hooks), ExitStack() as beginning:
        beginning.enter_context(reporter.writing_alone())
        observed(without_pickles(config))


def without_pickles(value: Any) -> Any:
    """A configuration, or a value of one, with the names of functions whose pickles are large in place of these.

    Prefect refuses parameters of half a megabyte, such as a notebook's function that reads the notebook's arrays.
    """
    if isinstance(value, Code):
        return value.label if len(value.pickled) > LARGEST_PICKLE else value
    if type(value) is tuple:
        return tuple(map(without_pickles, value))
    if isinstance(value, BaseModel):
        named = {name: without_pickles(each) for name, each in value}
        changed = {name: each for name, each in named.items() if each != getattr(value, name)}
        return value.model_copy(update=changed)
    return value


LARGEST_PICKLE, LONGEST = 10_000, 200
"""The most characters of a pickle that Prefect is given, and those of a reason that are shown."""


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
    """Tell whether a log record is anything but routine information from Dask."""
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


LIMIT = 10_000
"""The most reports that may wait to be sent; further ones are lost."""

BATCH = 100
"""The most reports of one kind that are sent in one request."""

SECONDS = 10.0
"""How long to wait for a silent server: for its answer to a request, and at the end for all reports that wait."""

PAUSE_SECONDS = 1.0
"""How long to wait before sending a report again that the server did not take."""

Send = Callable[[SyncPrefectClient, list[Any]], object]
"""A function that sends several reports of one kind in one request."""


class Reporter:
    """Sends reports in order from a thread of its own, each again and again until the server takes it.

    `httpx_settings` are those of clients that ask the server, one of this machine by no proxy.
    """

    def __init__(self) -> None:
        local = httpx.URL(PREFECT_API_URL.value() or "").host in ("127.0.0.1", "localhost", "::1")
        self.httpx_settings: dict[str, Any] = {"timeout": SECONDS, "trust_env": not local}
        self.error: BaseException | None = None
        self._silent = False
        self._lost = 0
        self._waiting: deque[tuple[Send, Any]] = deque()
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._closed = False
        threading.Thread(target=copy_context().run, args=(self._work,), daemon=True).start()

    def put(self, send: Send, content: Any = None) -> None:
        """Queue a report without waiting: `send` gets a list of `content`s, its own and that of its neighbours."""
        with self._changed:
            if len(self._waiting) < LIMIT:
                self._waiting.append((send, content))
                self._changed.notify_all()
            else:
                self._lost += 1

    def lose(self, error: BaseException, reports: int = 1) -> None:
        """Count reports as lost that the server refused or that could not even be made."""
        self._lost, self.error = self._lost + reports, error

    def flush(self) -> None:
        """Wait until all reports are sent, for `SECONDS` at most.

        A server that has not taken them by then is not waited for again until it has.
        """
        with self._changed:
            wait = 0.0 if self._silent else SECONDS
            self._silent = not self._changed.wait_for(lambda: not self._waiting, wait)

    def check_answering(self, request: httpx.Request) -> None:
        """Raise an error in place of a request to a server that `flush` has waited for in vain."""
        if self._silent:
            raise httpx.RequestError(f"it took no report in {SECONDS:g} s", request=request)

    @contextmanager
    def writing_alone(self) -> Iterator[None]:
        """Wait, but not long, until no other thread of this process is in this context.

        Prefect's server refuses what writes at once, as transactions keep its database from each other.
        """
        alone = self._writing.acquire(timeout=SECONDS)
        try:
            yield
        finally:
            if alone:
                self._writing.release()

    def close(self) -> int:
        """End the thread; returns how many reports the server did not take."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._lost + len(self._waiting)

    def _work(self) -> None:
        try:
            with (
                temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
                get_client(sync_client=True, httpx_settings=self.httpx_settings) as client,
            ):
                while batch := self._next():
                    self._send(client, batch)
        except Exception as error:  # noqa: BLE001 - such as of a proxy that httpx has no package for
            self.error = error

    def _next(self) -> list[tuple[Send, Any]]:
        """Wait for reports and return the next of one kind; empty once closed. They stay in the queue."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            kind = self._waiting[0][0]
            return list(takewhile(lambda report: report[0] == kind, islice(self._waiting, BATCH)))

    def _send(self, client: SyncPrefectClient, batch: list[tuple[Send, Any]]) -> None:
        try:
            with self.writing_alone():
                batch[0][0](client, [content for _, content in batch])
        except Exception as error:  # noqa: BLE001 - whatever Prefect's client raises, further reports are sent
            refused = isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error
            if isinstance(error, httpx.HTTPError) and not refused:
                self.error = error
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, PAUSE_SECONDS)
                return
            self.lose(error, len(batch))
        with self._changed:
            for _ in batch:
                self._waiting.popleft()
            self._changed.notify_all()


@shared
@contextmanager
def reporting() -> Iterator[Reporter]:
    """Yield the reporter of all runs of this process that go on at once.

    When the last context closes, reports that are still waiting are sent, and one notice says how many Prefect did
    not take.
    """
    reporter = Reporter()
    take_over(partial(reporter.put, send_events), partial(reporter.put, SyncPrefectClient.create_logs))
    try:
        yield reporter
    finally:
        give_back(SECONDS)
        reporter.flush()
        if missing := reporter.close():
            reason = one_line(reporter.error) if reporter.error else "too many at once"
            api = PREFECT_API_URL.value() or "its temporary server"
            notice(f"Prefect at {api} did not accept {missing} reports ({reason}); the run itself is not affected")


def send_events(client: SyncPrefectClient, contents: list[dict[str, Any]]) -> None:
    """Send events to Prefect; each is an event as Prefect's JSON."""
    client.request("POST", "/events", json=contents)
