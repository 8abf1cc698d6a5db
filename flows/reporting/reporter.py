"""Sends reports to Prefect from a thread of its own, so that training never waits for Prefect's server.

Prefect's own events and log lines are sent by this thread too, through hooks made for Prefect's process pools.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import islice, takewhile
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from roundweave.flows.reporting.listening import notice
from roundweave.flows.reporting.unofficial import give_back, take_over
from roundweave.storage.errors import DiskFull, one_line
from roundweave.tasks.executors.shared import shared

LIMIT = 10_000
"""The most reports that may wait to be sent; further ones are lost."""

BATCH = 100
"""The most reports of one kind that are sent in one request."""

ANSWER_SECONDS = 10.0
"""How long to wait for the server's answer to a request, and, at the end, for it to take one more report."""

LONGEST_SECONDS = 60.0
"""How long to wait at the end for a server that takes reports, but slowly."""

INTERRUPTED_SECONDS = 1.0
"""How long to wait for the server instead of `ANSWER_SECONDS` after an interrupt or on a full disk."""

PAUSE_SECONDS = 1.0
"""How long to wait before sending a report again that the server did not take."""

REFUSED = (400, 404, 405, 409, 413, 422)
"""HTTP statuses after which a report is dropped, as sending it again would give the same answer."""

Send = Callable[[SyncPrefectClient, list[Any]], object]
"""A function that sends several reports of one kind in one request."""


class Reporter:
    """Sends reports in order from a thread of its own, each again and again until the server takes it.

    `httpx_settings` are those of clients that ask the server, one of this machine by no proxy.
    """

    def __init__(self) -> None:
        local = httpx.URL(PREFECT_API_URL.value() or "").host in ("127.0.0.1", "localhost", "::1")
        self.httpx_settings = {"timeout": httpx.Timeout(ANSWER_SECONDS), "trust_env": not local}
        self.error: BaseException | None = None
        self._lost = 0
        self._patience = ANSWER_SECONDS
        self._waiting: deque[tuple[Send, Any]] = deque()
        self._changed = threading.Condition()
        self._turn = threading.Lock()
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

    def lose(self, error: BaseException) -> None:
        """Count a report as lost that could not even be made, and remember the error."""
        self._lost, self.error = self._lost + 1, error

    def flush(self, seconds: float) -> bool:
        """Wait until all reports are sent; False if the server took none of them for so many seconds.

        It is False, too, if a slow server has not taken all after `LONGEST_SECONDS`. Later calls then wait for
        `INTERRUPTED_SECONDS` at most.
        """
        last = time.monotonic() + LONGEST_SECONDS
        with self._changed:
            while self._waiting:
                wait = min(seconds, self._patience, last - time.monotonic())
                if not self._changed.wait(max(0.0, wait)):
                    self._patience = INTERRUPTED_SECONDS
                    return False
        return True

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Wait, but not long, until no other thread of this process is in this context.

        Prefect's server refuses what writes at once, as transactions keep its database from each other.
        """
        mine = self._turn.acquire(timeout=ANSWER_SECONDS)
        try:
            yield
        finally:
            if mine:
                self._turn.release()

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
            with self.in_turn():
                batch[0][0](client, [content for _, content in batch])
        except Exception as error:  # noqa: BLE001 - whatever Prefect's client raises, further reports are sent
            self.error = error
            refused = isinstance(error, PrefectHTTPStatusError) and error.response.status_code in REFUSED
            if isinstance(error, httpx.HTTPError | OSError) and not refused:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, PAUSE_SECONDS)
                return
            self._lost += len(batch)
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
    patience = ANSWER_SECONDS
    take_over(partial(reporter.put, send_events), partial(reporter.put, send_logs))
    try:
        yield reporter
    except BaseException as error:
        patience = patience_after(error)
        raise
    finally:
        give_back(patience)
        reporter.flush(patience)
        if missing := reporter.close():
            reason = one_line(reporter.error) if reporter.error else "too many at once"
            api = PREFECT_API_URL.value() or "its temporary server"
            notice(f"Prefect at {api} did not take {missing} reports ({reason}); the run itself is not affected")


def patience_after(error: BaseException) -> float:
    """How many seconds to wait for the server after an error.

    The wait is short after an interrupt, and on a full disk, as the server's own files may be on that disk.
    """
    waits = isinstance(error, Exception) and not isinstance(error, DiskFull)
    return ANSWER_SECONDS if waits else INTERRUPTED_SECONDS


def send_events(client: SyncPrefectClient, contents: list[dict[str, Any]]) -> None:
    """Send events to Prefect; each is an event as Prefect's JSON."""
    client.request("POST", "/events", json=contents)


def send_logs(client: SyncPrefectClient, contents: list[dict[str, Any]]) -> None:
    """Send log lines to Prefect; each is a line as Prefect's JSON."""
    client.create_logs(contents)
