"""What Prefect keeps of a run: its name, a bar, a table, plots, and each round as an event and a line of a log."""

from __future__ import annotations

import base64
import json
from itertools import chain

import pytest

import roundweave as rw
from roundweave.storage.runs.measures import by_worker
from tests.flows.prefect_server import PrefectServer, until

pytestmark = pytest.mark.prefect

SMALL = {"model": "logistic", "executor": "inline", "partitions": 2, "local_steps": 2}
ALWAYS = {"origin", "progress", "history", "plot"}


@pytest.fixture(autouse=True)
def _no_plots() -> None:
    """Here pages have them."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rw.Run:
    """A run whose first three rounds are one task."""
    root = tmp_path_factory.mktemp("runs")
    return rw.train(rw.TrainConfig(**SMALL, rounds=4, window=3, name="taught", root=root))


def artifacts_of(server: PrefectServer, name: str) -> dict[str, str]:
    """What is kept under a run's name, by kind."""
    found = server.asked("artifacts", artifacts={"key": {"like_": f"{name}-%"}})
    return {each["key"].removeprefix(f"{name}-"): each["data"] for each in found}


def picture(markdown: str) -> bytes:
    return base64.b64decode(markdown.partition("base64,")[2].rstrip(")"))


def test_a_flow_run_has_the_name_of_its_run_a_bar_a_plot_and_a_task_for_each_window(server, run) -> None:
    (flow,) = server.flow_runs("taught")
    assert flow["state_type"] == "COMPLETED"
    artifacts = artifacts_of(server, "taught")
    assert artifacts.keys() == ALWAYS
    assert artifacts["progress"] == 100.0
    assert picture(artifacts["plot"]).startswith(b"\x89PNG")
    tasks = server.asked("task_runs", task_runs={"flow_run_id": {"any_": [flow["id"]]}})
    assert "rounds 1 to 3" in {task["name"] for task in tasks}


def test_tables_and_the_log_show_figures_as_the_command_does(server, run) -> None:
    history = run.history()
    last = history.iloc[-1]
    row = json.loads(artifacts_of(server, "taught")["history"])[-1]
    figures = {"loss": f"{last.loss:.4f}", "accuracy": f"{last.accuracy:.2%}", "seconds": f"{last.seconds:.3f}"}
    assert row == {"round": 4, **figures, "train_loss": f"{last.train_loss:.4f}"} | {
        name: int(last[name]) for name in ("examples", "accepted", "refused", "absent", "left_out")
    }
    messages = server.logged("taught")
    for round in range(1, 5):
        (line,) = [message for message in messages if message.startswith(f"round {round}/4: ")]
        assert f"loss {history['loss'][round]:.4f}" in line


def test_each_round_is_in_one_event(server, run) -> None:
    until(lambda: [*chain(*server.rounds("taught"))] == [1, 2, 3, 4])  # they arrive a moment after they were sent


@pytest.mark.thorough
def test_a_server_leaves_its_arrivals_as_a_table_and_their_staleness_as_a_plot(server) -> None:
    run = rw.train(
        rw.TrainConfig(algorithm="async_sgd", name="served", model="logistic", executor="inline", rounds=6)
    )
    artifacts = artifacts_of(server, "served")
    assert artifacts.keys() == ALWAYS | {"arrivals", "staleness"}
    rows = by_worker(run)
    shown = {"share": "{:.1%}", "staleness": "{:.2f}", "seconds": "{:.3f}"}
    rows = [row | {name: form.format(row[name]) for name, form in shown.items()} for row in rows]
    assert json.loads(artifacts["arrivals"]) == rows
    assert picture(artifacts["staleness"]).startswith(b"\x89PNG")


@pytest.mark.thorough
def test_names_have_letters_that_keys_of_prefect_have_not_and_scores_may_be_no_numbers(server) -> None:
    assert rw.train(rw.TrainConfig(name="größe", **SMALL, rounds=1, held_out=0)).done == 1
    assert artifacts_of(server, "gr--e").keys() == ALWAYS


def test_the_log_of_a_failed_flow_run_is_the_line_of_the_error(server) -> None:
    with pytest.raises(rw.RoundweaveError) as raised:
        rw.train(rw.TrainConfig(name="fails", **SMALL | {"lr": 1e38, "local_steps": 9}, rounds=1))
    logs = server.logged("fails")
    assert str(raised.value) in logs
    assert not any("Traceback" in message for message in logs)
