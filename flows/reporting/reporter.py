"""Sends reports to Prefect from a thread of its own, so that training never waits for Prefect's server.

Prefect's own events and log lines are sent by this thread too, through hooks made for Prefect's process pools.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import islice, takewhile
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from roundweave.flows.reporting.listening import notice
from roundweave.flows.reporting.unofficial import give_back, take_over
from roundweave.storage.errors import one_line
from roundweave.tasks.executors.shared import shared

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
    take_over(partial(reporter.put, send_events), partial(reporter.put, send_logs))
    try:
        yield reporter
    finally:
        give_back(SECONDS)
        reporter.flush()
        if missing := reporter.close():
            reason = one_line(reporter.error) if reporter.error else "too many at once"
            api = PREFECT_API_URL.value() or "its temporary server"
            notice(f"Prefect at {api} did not take {missing} reports ({reason}); the run itself is not affected")


def send_events(client: SyncPrefectClient, contents: list[dict[str, Any]]) -> None:
    """Send events to Prefect; each is an event as Prefect's JSON."""
    client.request("POST", "/events", json=contents)


def send_logs(client: SyncPrefectClient, contents: list[dict[str, Any]]) -> None:
    """Send log lines to Prefect; each is a line as Prefect's JSON."""
    client.create_logs(contents)
