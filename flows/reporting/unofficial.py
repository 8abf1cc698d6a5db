"""Everything that this project uses of Prefect without its documentation; it works with prefect 3.9.1.

This module's test fails, and names what is missing, if a later version of Prefect no longer has it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from prefect.context import SyncClientContext
from prefect.events import Event
from prefect.events import worker as events
from prefect.logging import handlers as logs

Put = Callable[[dict[str, Any]], None]
"""A function that takes one event or log line as Prefect's JSON."""


def client_context(httpx_settings: dict[str, Any]) -> SyncClientContext:
    """Return a context whose client Prefect takes wherever it asks for one, and would else make another."""
    context = SyncClientContext(httpx_settings)
    context._httpx_settings = None
    return context


def screen_handlers() -> list[logging.Handler]:
    """Return the logging handlers that print Prefect's log lines on the screen."""
    return [
        handler
        for name in ("", "prefect", "prefect._internal")
        for handler in logging.getLogger(name).handlers
        if type(handler).__module__ == logs.__name__
    ]


def take_over(put_event: Put, put_log: Put) -> None:
    """Make Prefect pass its events and log lines to these functions instead of sending them itself."""
    logs.set_api_log_sink(lambda log: put_log({k: v for k, v in log.items() if k != "__payload_size__"}))
    client = events.ProcessPoolForwardingEventsClient
    events.EventsWorker.set_client_override(client, event_queue=_Events(put_event))


def give_back(seconds: float) -> None:
    """Make Prefect send its events and log lines itself again, after up to `seconds` for those still pending."""
    logs.set_api_log_sink(None)
    # `drain_all` returns a coroutine where an event loop runs, as in a notebook; a new thread has no loop.
    drain = threading.Thread(target=events.EventsWorker.drain_all, args=(seconds,), daemon=True)
    drain.start()
    drain.join(seconds)
    events.EventsWorker.set_client_override(None)


class _Events:
    """Stands for the queue into which Prefect puts its events, and passes each to a function."""

    def __init__(self, put: Put) -> None:
        self._put = put

    def put(self, message: tuple[str, Event]) -> None:
        self._put(message[1].model_dump(mode="json"))
