"""What is used of Prefect without being documented is there, and named where it is not."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.events import emit_event
from prefect.logging.handlers import emit_api_log

from roundweave.flows.reporting.unofficial import give_back, take_over

pytestmark = pytest.mark.prefect

GONE = "prefect has changed: mend flows/reporting/unofficial.py"


def test_events_and_logs_are_handed_over() -> None:
    received: list[dict[str, Any]] = []
    take_over(received.append, received.append)
    try:
        emit_event("roundweave.test", {"prefect.resource.id": "roundweave.test"})
        emit_api_log({"message": "logged", "__payload_size__": 4})
    finally:
        give_back(10)
    assert {"message": "logged"} in received, GONE
    assert any(each.get("event") == "roundweave.test" for each in received), GONE
