"""What is used of Prefect and is not in its documentation: seen in prefect 3.9.1, and all of it is here.

The test of this module says what is gone, where a later version has it no more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import Event
from prefect.events import worker as events
from prefect.logging import handlers as logs

Put = Callable[[dict[str, Any]], None]
"""Takes an event or a line of the log as Prefect's API does."""


def wait_less(client: SyncPrefectClient, seconds: float) -> None:
    """Have a client wait so long for an answer from now on."""
    client._client.timeout = seconds


def screen_handlers() -> list[logging.Handler]:
    """What writes Prefect's own lines of the log on the screen."""
    return [
        handler
        for name in ("", "prefect", "prefect._internal")
        for handler in logging.getLogger(name).handlers
        if type(handler).__module__ == logs.__name__
    ]


def take_over(put_event: Put, put_log: Put) -> None:
    """Have Prefect hand over its events and logs, and not send them itself: it has hooks for its process pools."""
    logs.set_api_log_sink(lambda log: put_log({k: v for k, v in log.items() if k != "__payload_size__"}))
    client = events.ProcessPoolForwardingEventsClient
    events.EventsWorker.set_client_override(client, event_queue=_Events(put_event))


def give_back(seconds: float) -> None:
    """Have Prefect send its events and logs itself again, once it has handed over those there are."""
    logs.set_api_log_sink(None)
    # It gives a coroutine where an event loop runs, as in a notebook; a thread has none.
    drain = threading.Thread(target=events.EventsWorker.drain_all, args=(seconds,), daemon=True)
    drain.start()
    drain.join(seconds)
    events.EventsWorker.set_client_override(None)


class _Events:
    """The queue into which Prefect puts its events."""

    def __init__(self, put: Put) -> None:
        self._put = put

    def put(self, item: tuple[str, Event]) -> None:
        self._put(item[1].model_dump(mode="json"))
