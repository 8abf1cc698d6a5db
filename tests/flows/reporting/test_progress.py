"""What Prefect keeps of a run of a parameter server beside what it keeps of every run."""

from __future__ import annotations

import base64
import json

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.sorting import LogSort

import roundweave as rw
from roundweave.storage.runs.tables import worker_rows

pytestmark = pytest.mark.prefect


@pytest.fixture(autouse=True)
def _no_plots() -> None:
    """Here pages have them."""


def artifacts_of(name: str) -> dict[str, str]:
    """What is kept under a run's name, by kind."""
    with get_client(sync_client=True) as client:
        of_this = ArtifactFilter(key=ArtifactFilterKey(like_=f"{name}-%"))
        found = client.read_artifacts(artifact_filter=of_this)
    return {str(artifact.key).removeprefix(f"{name}-"): artifact.data for artifact in found}


def test_tables_show_figures_as_the_command_does() -> None:
    run = rw.train(rw.TrainConfig(name="figures", model="logistic", executor="inline", rounds=2))
    last = run.history().iloc[-1]
    row = json.loads(artifacts_of("figures")["history"])[-1]
    figures = {"loss": f"{last.loss:.4f}", "accuracy": f"{last.accuracy:.2%}", "seconds": f"{last.seconds:.3f}"}
    assert row == {"round": 2, **figures, "train_loss": f"{last.train_loss:.4f}"} | {
        name: int(last[name]) for name in ("examples", "accepted", "refused", "absent", "left_out")
    }


def test_a_server_leaves_its_arrivals_as_a_table_and_their_staleness_as_a_plot() -> None:
    fields = {"model": "logistic", "executor": "inline", "rounds": 6}
    run = rw.train(rw.TrainConfig(algorithm="async_sgd", name="served", **fields))
    artifacts = artifacts_of("served")
    assert artifacts.keys() == {"origin", "progress", "history", "plot", "arrivals", "staleness"}
    rows = worker_rows(run.arrivals())
    shown = {"share": "{:.1%}", "staleness": "{:.2f}", "seconds": "{:.3f}"}
    rows = [row | {name: form.format(row[name]) for name, form in shown.items()} for row in rows]
    assert json.loads(artifacts["arrivals"]) == rows
    picture = artifacts["staleness"].partition("base64,")[2].rstrip(")")
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    rw.train(rw.TrainConfig(name="waited", **fields))
    assert artifacts_of("waited").keys() == {"origin", "progress", "history", "plot"}


def test_names_have_letters_that_keys_of_prefect_have_not() -> None:
    assert rw.train(rw.TrainConfig(name="größe", model="logistic", executor="inline", rounds=1)).done == 1
    assert artifacts_of("gr--e").keys() == {"origin", "progress", "history", "plot"}


@pytest.mark.parametrize("proxy", [{"HTTP_PROXY": "http://127.0.0.1:9"}, {"ALL_PROXY": "socks5://127.0.0.1:9"}])
def test_reports_to_this_machine_go_by_no_proxy(monkeypatch, capsys, proxy: dict[str, str]) -> None:
    name = "-".join(proxy).lower().replace("_", "-")
    with monkeypatch.context() as patch:
        for variable, value in proxy.items():
            patch.setenv(variable, value)
        rw.train(rw.TrainConfig(name=name, model="logistic", executor="inline", rounds=1))
    assert "Prefect" not in capsys.readouterr().err
    assert artifacts_of(name).keys() == {"origin", "progress", "history", "plot"}


def test_the_log_of_a_failed_flow_run_is_the_line_of_the_error() -> None:
    fails = {"lr": 1e38, "local_steps": 9, "model": "logistic", "executor": "inline", "rounds": 1}
    with pytest.raises(rw.RoundweaveError) as raised:
        rw.train(rw.TrainConfig(name="fails", **fails))
    with get_client(sync_client=True) as client:
        logs = [log.message for log in client.read_logs(sort=LogSort.TIMESTAMP_DESC)]
    assert str(raised.value) in logs
    assert not any("Traceback" in message for message in logs)
