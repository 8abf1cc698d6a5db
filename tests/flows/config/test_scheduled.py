"""Configurations that are trained again and again: dated names, complete and busy runs, and the newest network."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.flow_engine import run_flow
from prefect.states import Scheduled

import roundweave as rw
from roundweave.flows import train_flow
from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.config.scheduled import scheduled
from roundweave.flows.stored import Run
from roundweave.storage.errors import CodeError, DataError, ExperimentDiffers, RoundFailed, RunBusy, UsageError
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.aliases import holder_of
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.values.digests import tensor_digests
from roundweave.storage.values.hashing import json_digest
from tests.flows.prefect_server import command_line, rounds_done, until

pytestmark = pytest.mark.prefect

SMALL = {"model": "logistic", "partitions": 2, "local_steps": 2, "executor": "inline", "rounds": 2}


def trained(root: Path, **fields: Any) -> Run:
    """Train a configuration as the flow does, without Prefect."""
    run = train_flow.fn(config(root, **fields))
    assert isinstance(run, Run)
    return run


def config(root: Path, **fields: Any) -> rw.TrainConfig:
    return rw.TrainConfig(**SMALL | {"root": root} | fields)


def names(root: Path) -> list[str]:
    return list(looked_through(root))


def tensors_digest(round: rw.Round) -> str:
    return json_digest(list(tensor_digests(round.tensors).values()))


def test_without_a_word_a_complete_run_is_left_as_it_is(tmp_path: Path) -> None:
    runs = [trained(tmp_path, name="night") for _ in range(2)]
    assert [run.done for run in runs] == [2, 2]
    assert names(tmp_path) == ["night"]


def test_a_complete_run_is_followed_by_dated_ones(tmp_path: Path) -> None:
    runs = [trained(tmp_path, name="my-night", on_complete="new") for _ in range(3)]
    dated = f"my-night-{time.strftime('%Y%m%d')}"
    assert [run.name for run in runs] == names(tmp_path) == ["my-night", dated, f"{dated}-2"]
    assert len({run.digest for run in runs}) == 1


def test_a_dated_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    trained(tmp_path, name="night", on_complete="new")
    cut = trained(tmp_path, name="night", on_complete="new", rounds=1).address
    longer = trained(tmp_path, name=Path(cut).stem, rounds=3)
    for record in Path(cut, "commits").glob("3.json"):
        record.unlink()
    assert rw.open_run(cut).status != "complete"
    assert trained(tmp_path, name="night", on_complete="new", rounds=3).digest == longer.digest
    assert len(names(tmp_path)) == 2


FAILING = """
from pathlib import Path
import torch

HERE = Path({here!r})

def data():
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(int((HERE / "seed").read_text())))
    return inputs, (inputs[:, 0] > 0).long()

def loss(outputs, targets):
    if len(outputs) > 20 and (HERE / "down").exists():
        raise ValueError("the site is down")
    return torch.nn.functional.cross_entropy(outputs, targets)
"""


def test_a_night_that_failed_before_its_data_changed_lets_the_next_begin(tmp_path: Path, capfd) -> None:
    """Else each later night would find its name taken, whichever way it is begun."""
    (tmp_path / "mine.py").write_text(FAILING.format(here=str(tmp_path)))
    own = {"data": f"{tmp_path}/mine.py:data", "loss": f"{tmp_path}/mine.py:loss", "algorithm": "fed_avg"}
    nightly = config(tmp_path, name="night", on_complete="new", batch_size=25, **own)
    today = time.strftime("%Y%m%d")

    def night(seed: int, train: Any) -> str:
        (tmp_path / "seed").write_text(str(seed))
        return train(nightly).name

    (tmp_path / "down").touch()
    with pytest.raises(RoundFailed):
        night(1, train_flow.fn)
    (tmp_path / "down").unlink()
    assert night(1, rw.train) == "night"  # the same examples: it goes on
    (tmp_path / "down").touch()
    with pytest.raises(RoundFailed):
        night(2, rw.train)
    (tmp_path / "down").unlink()
    capfd.readouterr()
    assert night(3, rw.train) == f"night-{today}-2"
    said = capfd.readouterr().err
    assert f"night-{today} is another experiment (data: other examples" in said
    assert said.endswith(f"); night-{today}-2 begins instead, as on_complete says\n")
    assert night(4, train_flow.fn) == f"night-{today}-3"
    whole = {name: run.status for name, run in looked_through(tmp_path).items()}
    assert whole.pop(f"night-{today}") == "failed"
    assert [*whole.values()] == ["complete"] * 3
    with pytest.raises(ExperimentDiffers, match="delete that one, which has no round"):
        rw.train(nightly.model_copy(update={"on_complete": None, "name": f"night-{today}"}))
    says = "restore them, or begin another run with these: `roundweave train --from night@-1`"
    with pytest.raises(ExperimentDiffers, match=rf"\(data: other examples[^;]*\); {says}$"):
        train_flow.fn(resumed_config("night", tmp_path, False, {"rounds": 3}))


def test_a_complete_run_is_extended_and_is_the_run_that_was_trained_at_once(tmp_path: Path) -> None:
    extended = [trained(tmp_path, name="night", on_complete="extend") for _ in range(3)]
    assert [run.done for run in extended] == [2, 4, 6]
    assert extended[-1].digest == trained(tmp_path, name="once", rounds=6).digest
    assert extended[-1].replay("all").identical


def test_a_complete_run_is_skipped_in_a_line(tmp_path: Path, capfd) -> None:
    first = trained(tmp_path, name="night", on_complete="skip")
    assert first.done == 2
    again = rw.train(config(tmp_path, name="night", on_complete="skip", rounds=5), bar=False)
    assert (again.digest, again.done) == (first.digest, 2)
    assert capfd.readouterr().err == "night is complete, 2 rounds; skipped, as on_complete says\n"


def test_what_is_about_a_name_needs_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a name"):
        config(tmp_path, on_complete="skip")
    with pytest.raises(UsageError, match="auto counts epochs"):
        rw.TrainConfig(algorithm="auto", name="a", on_complete="extend")
    with pytest.raises(UsageError, match="it takes its name, of letters, digits, "):
        config(tmp_path, name="night-{day}")


def test_a_date_enters_the_name_and_no_number(tmp_path: Path) -> None:
    run = trained(tmp_path, name="night-{date}")
    assert run.name == f"night-{time.strftime('%Y%m%d')}"
    assert run.digest == trained(tmp_path, name="plain").digest
    assert run.replay("all").identical
    again = trained(tmp_path, name="night-{date}", on_complete="new")
    assert (again.name, again.done) == (f"{run.name}-2", 2)


def test_each_night_begins_with_the_network_of_the_newest_complete_run(tmp_path: Path, capfd) -> None:
    first = rw.train(config(tmp_path, name="night-1", start_from="night-*@-1"), bar=False)
    assert re.fullmatch(r"no run night-\* is complete under .*; night-1 begins .*\n", capfd.readouterr().err)
    other = trained(tmp_path, name="other", seed=7)
    second = trained(tmp_path, name="night-2", start_from="night-*@-1")
    third = trained(tmp_path, name="night-3", start_from="night-*@1")
    begins = [tensors_digest(run.round(0)) for run in (second, third)]
    assert begins == [tensors_digest(first.round(2)), tensors_digest(second.round(1))]
    assert tensors_digest(other.round(2)) not in begins
    assert second.replay("all").identical
    assert second.config["start_from"]["reference"] == f"{first.address}@2"


def test_a_night_that_goes_on_keeps_what_it_began_with(tmp_path: Path) -> None:
    nightly = {"start_from": "night-*@-1"}
    trained(tmp_path, name="night-1", **nightly)
    trained(tmp_path, name="night-2", **nightly)
    trained(tmp_path, name="night-3", **nightly)
    longer = trained(tmp_path, name="night-2", rounds=4, **nightly)
    assert longer.done == 4
    with pytest.raises(ExperimentDiffers, match="start_from"):
        trained(tmp_path, name="night-2", rounds=4, start_from="night-3@-1")


def test_runs_that_are_not_complete_or_damaged_are_passed_over(tmp_path: Path, capfd) -> None:
    whole = trained(tmp_path, name="night-1")
    cut = trained(tmp_path, name="night-2")
    Path(cut.address, "commits", "2.json").unlink()
    damaged = trained(tmp_path, name="night-3")
    Path(damaged.address, "zarr.json").write_text("{")
    now, run = scheduled(config(tmp_path, name="night-4", start_from="night-*@-1"))
    assert run is None
    assert now.start_from == f"{whole.address}@-1"
    assert capfd.readouterr().err.startswith("night-3 is passed over: ")


def test_a_run_that_is_busy_is_refused_or_skipped(tmp_path: Path) -> None:
    run = trained(tmp_path, name="night")
    with hold_lease(place_of(run.address), "another", 2):
        with pytest.raises(RunBusy):
            trained(tmp_path, name="night", rounds=3)
        assert rw.train(config(tmp_path, name="night", rounds=3, on_busy="skip")).done == 2


def flow_runs(name: str) -> list[FlowRun]:
    """What Prefect has under a name."""
    named = FlowRunFilter(name=FlowRunFilterName(any_=[name]))
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(flow_run_filter=named)


def test_prefect_calls_what_is_skipped_so_and_not_failed(tmp_path: Path) -> None:
    run = train_flow(config(tmp_path, name="first-of-two"))
    with hold_lease(place_of(run.address), "another", 2):
        train_flow(config(tmp_path, name="first-of-two", rounds=3, on_busy="skip"))
    train_flow(config(tmp_path, name="first-of-two", on_complete="skip"))
    states = [(each.state_name, each.state_type.value) for each in flow_runs("first-of-two")]
    assert sorted(states) == [("Completed", "COMPLETED"), ("Skipped", "COMPLETED"), ("Skipped", "COMPLETED")]


def test_what_fails_before_there_is_a_run_has_its_name_at_prefect(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        train_flow(config(tmp_path, name="early-{date}", data="csv:nowhere.csv"))
    (failed,) = flow_runs(f"early-{time.strftime('%Y%m%d')}")
    assert failed.state_name == "Failed"
    with pytest.raises(CodeError):
        train_flow(config(tmp_path, algorithm="fed_avg", model="nowhere.py:net"))
    with get_client(sync_client=True) as client:
        assert [each for each in client.read_flow_runs() if each.name.startswith("fed_avg-net-")]


LONG = """
data = "digits"
model = "logistic"
executor = "inline"
partitions = 2
rounds = 100000
name = "night"
on_busy = "skip"
algorithm = {name = "fed_avg", local_steps = 1}
"""


@pytest.mark.slow
def test_of_two_processes_on_one_name_the_second_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "night.toml").write_text(LONG)
    line = command_line("train", "night.toml")
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(line, cwd=tmp_path, stdout=log, stderr=log)
    try:
        until(lambda: rounds_done(tmp_path / "runs" / "night.zarr") >= 2, tmp_path / "first.log")
        second = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    finally:
        first.send_signal(signal.SIGINT)
        first.wait(60)
    assert (second.returncode, second.stdout) == (0, ""), second.stderr
    assert re.search(rf"is being written by process {first.pid} .*; skipped, as on_busy says\n", second.stderr)


def test_prefect_calls_what_a_gate_did_not_accept_rejected_and_completed(tmp_path: Path) -> None:
    run = train_flow(config(tmp_path, name="no-champion", accept="loss <= 0", promote="champion"))
    assert isinstance(run, Run)
    assert run.judgement is not None
    (state,) = [each.state for each in flow_runs("no-champion")]
    assert state is not None
    assert (state.name, state.type.value) == ("Rejected", "COMPLETED")
    assert state.message == run.judgement.reasons[0]
    assert holder_of(tmp_path, "champion") is None


def test_a_scheduled_run_is_of_the_day_on_which_it_was_due(tmp_path: Path) -> None:
    due = Scheduled(scheduled_time=datetime(2025, 12, 31, 23, 50, tzinfo=UTC))
    parameters = {"config": config(tmp_path, name="a-{date}", timezone="Europe/Berlin").model_dump(mode="json")}
    with get_client(sync_client=True) as client:
        asked = client.create_flow_run(train_flow, parameters=parameters, state=due)
    assert run_flow(train_flow, asked, parameters).name == "a-20260101"
