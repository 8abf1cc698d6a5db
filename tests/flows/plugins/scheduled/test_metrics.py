"""Prometheus reads how the served runs are: what the store has when it asks, of these runs alone."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from roundweave.flows.plugins.scheduled.metrics import answering
from roundweave.storage.errors import UsageError
from tests.flows.nights import night, trained

Told = dict[tuple[str, ...], float]


def read(address: str) -> Told:
    """The values by name and labels, as Prometheus' own library reads them."""
    with urllib.request.urlopen(address) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_what_is_asked_for_is_what_the_store_has(tmp_path: Path) -> None:
    with answering(night(name="night-{date}"), "0") as address:
        told = read(address)
        assert [key for key in told if key[0].startswith("roundweave")] == [("roundweave_prefect_answers",)]
        first = trained(name="night-20310101", promote="champion")
        told = read(address)
        assert told["roundweave_runs", "complete"] == 1
        assert told["roundweave_newest_run_info", first.name, "complete"] == 1
        trained(name="another", rounds=5)
        rejected = trained(name="night-20310102", accept="loss < 0", rounds=3)
        (tmp_path / "runs/night-20310103.zarr").mkdir()
        told = read(address)
    score, newest = rejected.round(-1).score, "roundweave_newest_run"
    statuses = {key[1]: value for key, value in told.items() if key[0] == "roundweave_runs"}
    assert statuses == {"complete": 1, "rejected": 1, "no run": 1}
    once = [(f"{newest}_info", rejected.name, "rejected"), ("roundweave_alias", "champion", first.name)]
    wanted = dict.fromkeys(once, 1) | dict.fromkeys([(f"{newest}_rounds",), (f"{newest}_planned_rounds",)], 3)
    wanted |= {("roundweave_run", each.name, each.status): each.created for each in (first, rejected)}
    wanted |= {("roundweave_complete_timestamp_seconds",): first.round(-1).commit.time}
    wanted |= {(f"{newest}_refused_updates",): 0, (f"{newest}_start_timestamp_seconds",): rejected.created}
    wanted |= {(f"{newest}_score", "loss"): score.loss, (f"{newest}_score", "accuracy"): score.accuracy}
    assert wanted.items() <= told.items()


def test_nobody_is_answered_afterwards_and_a_port_is_taken_once() -> None:
    config = night()
    with answering(config, "127.0.0.1:0") as address:
        port = address.split(":")[2].partition("/")[0]
        with pytest.raises(UsageError, match=f"nobody can listen at --metrics {port}"), answering(config, port):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))


@pytest.mark.parametrize("place", ["", "x", "99999", "-1", "no.such.machine.invalid:9464", "1.2:3:4"])
def test_what_is_no_port_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="--metrics"), answering(night(), place):
        pass
