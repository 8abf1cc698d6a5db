"""How Prefect calls a flow run of a training that has nothing to do, cannot begin, is rejected, or begins late."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prefect import get_client
from prefect.flow_engine import run_flow
from prefect.states import Scheduled

from roundweave.flows import train_flow
from roundweave.flows.stored import Run
from roundweave.storage.errors import CodeError, DataError
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.names import holder_of
from tests.flows.nights import night
from tests.runs import RUNS

pytestmark = pytest.mark.prefect


def test_prefect_calls_what_is_skipped_so_and_not_failed(server, stored) -> None:
    run, plain = stored("plain"), RUNS["plain"] | {"name": "plain"}
    with hold_lease(place_of(run.address), "another", 2):
        busy = train_flow(night(**plain | {"rounds": 5, "on_busy": "skip"}))
    complete = train_flow(night(**plain, on_complete="skip"))
    assert [(each.name, each.digest) for each in (busy, complete)] == [("plain", run.digest)] * 2
    states = [(each["state_name"], each["state_type"]) for each in server.flow_runs("plain")]
    assert states == [("Skipped", "COMPLETED")] * 2


@pytest.mark.thorough
def test_what_fails_before_there_is_a_run_has_its_name_at_prefect(server) -> None:
    with pytest.raises(DataError):
        train_flow(night(name="early-{date}", data="csv:nowhere.csv"))
    (failed,) = server.flow_runs(f"early-{time.strftime('%Y%m%d')}")
    assert failed["state_name"] == "Failed"
    with pytest.raises(CodeError):
        train_flow(night(algorithm="fed_avg", model="nowhere.py:net"))
    assert server.asked("flow_runs", flow_runs={"name": {"like_": "fed_avg-net-"}})


def test_prefect_calls_what_a_gate_did_not_accept_rejected_and_completed(server, tmp_path: Path) -> None:
    run = train_flow(night(name="no-champion", accept="loss <= 0", promote="champion"))
    assert isinstance(run, Run)
    (flow,) = server.flow_runs("no-champion")
    state = flow["state"]
    assert (state["name"], state["type"], state["message"]) == ("Rejected", "COMPLETED", run.judgement.reasons[0])
    assert holder_of(tmp_path / "runs", "champion") is None


def test_a_scheduled_run_is_of_the_day_on_which_it_was_due() -> None:
    due = Scheduled(scheduled_time=datetime(2025, 12, 31, 23, 50, tzinfo=UTC))
    parameters = {"config": night(name="a-{date}", timezone="Europe/Berlin").model_dump(mode="json")}
    with get_client(sync_client=True) as client:
        asked = client.create_flow_run(train_flow, parameters=parameters, state=due)
    assert run_flow(train_flow, asked, parameters).name == "a-20260101"
