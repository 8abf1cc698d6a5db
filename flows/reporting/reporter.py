"""What is reported to Prefect is sent by a thread of its own, so that nobody ever waits for the server.

Prefect's own events and logs go the same way: it has hooks for them, made for its process pools.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import islice, takewhile
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.reporting.listening import notice
from flows.reporting.unofficial import give_back, take_over
from storage.errors import DiskFull, one_line

LIMIT = 10_000
"""How many reports may wait; further ones are lost."""

BATCH = 100
"""So many reports of a kind are sent in one request."""

ANSWER_SECONDS = 10.0
"""How long the server may take for an answer, and, at the end, until it takes another report."""

INTERRUPTED_SECONDS = 1.0
"""The same once a person has asked for the end, or a disk is full."""

PAUSE_SECONDS = 1.0
"""Between a report that was not taken and the same once more."""

REFUSED = (400, 404, 405, 409, 413, 422)
"""Answers that will be the same another time."""

Send = Callable[[SyncPrefectClient, list[Any]], object]
"""Sends several reports of its kind at once."""


class Reporter:
    """Sends reports in their order, each until it is taken."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._lost = self._taken = 0
        self._waiting: deque[tuple[Send, Any]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=copy_context().run, args=(self._work,), daemon=True).start()

    def put(self, send: Send, content: Any = None) -> None:
        """Have something sent, at once or when the server answers again."""
        with self._changed:
            if len(self._waiting) < LIMIT:
                self._waiting.append((send, content))
                self._changed.notify_all()
            else:
                self._lost += 1

    def lose(self, error: BaseException) -> None:
        """Count a report that could not be made."""
        self._lost, self.error = self._lost + 1, error

    def flush(self, seconds: float) -> bool:
        """Wait until all is sent, True, or until the server has taken nothing for so long, False."""
        with self._changed:
            while self._waiting:
                taken = self._taken
                if not self._changed.wait_for(partial(self._took_more, taken), seconds):
                    return False
        return True

    def _took_more(self, than: int) -> bool:
        return self._taken > than

    def close(self) -> int:
        """End it; how many reports were not taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._lost + len(self._waiting)

    def _work(self) -> None:
        settings = {"timeout": httpx.Timeout(ANSWER_SECONDS)}
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True, httpx_settings=settings) as client,
        ):
            while batch := self._next():
                self._send(client, batch)

    def _next(self) -> list[tuple[Send, Any]]:
        """The next reports of one kind, once there are any, which wait until they are taken; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            kind = self._waiting[0][0]
            return list(takewhile(lambda report: report[0] == kind, islice(self._waiting, BATCH)))

    def _send(self, client: SyncPrefectClient, batch: list[tuple[Send, Any]]) -> None:
        try:
            batch[0][0](client, [content for _, content in batch])
        except (httpx.HTTPError, OSError) as error:
            self.error = error
            refused = isinstance(error, PrefectHTTPStatusError) and error.response.status_code in REFUSED
            if not refused:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, PAUSE_SECONDS)
                return
            self._lost += len(batch)
        with self._changed:
            for _ in batch:
                self._waiting.popleft()
            self._taken += len(batch)
            self._changed.notify_all()


_reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)


@contextmanager
def reporting() -> Iterator[Reporter]:
    """The reporter of this run; what could not be reported is said once, at the end of the outermost."""
    outer = _reporter.get()
    if outer is not None:
        yield outer
        return
    reporter = Reporter()
    token = _reporter.set(reporter)
    patience = ANSWER_SECONDS
    take_over(partial(reporter.put, send_events), partial(reporter.put, send_logs))
    try:
        yield reporter
    except BaseException as error:
        patience = patience_after(error)
        raise
    finally:
        _reporter.reset(token)
        give_back(patience)
        reporter.flush(patience)
        _say(reporter.close(), reporter.error)


def patience_after(error: BaseException) -> float:
    """How long to wait for the server, in seconds: it may keep its own files on the disk that is full."""
    waits = isinstance(error, Exception) and not isinstance(error, DiskFull)
    return ANSWER_SECONDS if waits else INTERRUPTED_SECONDS


def _say(missing: int, error: BaseException | None) -> None:
    if missing:
        reason = one_line(error) if error else "too many at once"
        notice(
            f"Prefect at {PREFECT_API_URL.value()} did not take {missing} reports ({reason}); "
            "the run itself is not affected"
        )


def send_events(client: SyncPrefectClient, contents: list[dict[str, Any]]) -> None:
    """Send events as Prefect writes them."""
    client.request("POST", "/events", json=contents)


def send_logs(client: SyncPrefectClient, contents: list[dict[str, Any]]) -> None:
    """Send lines of logs as Prefect writes them."""
    client.create_logs(contents)
