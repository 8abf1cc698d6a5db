"""Configurations that are trained again and again: dated names, complete and busy runs, and the newest network."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roundweave as rw
from roundweave.flows import train_flow
from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.planning.naming import configure, find
from roundweave.storage.errors import ExperimentDiffers, Rejected, RoundFailed, RunBusy
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.values.digests import tensor_digests
from roundweave.storage.values.hashing import json_digest
from tests.flows.command.in_process import run
from tests.flows.nights import night, trained


@pytest.fixture
def names(tmp_path: Path) -> Callable[[], list[str]]:
    """The names of the runs that are there."""
    return lambda: list(looked_through(tmp_path / "runs"))


def tensors_digest(round: rw.Round) -> str:
    return json_digest(list(tensor_digests(round.tensors).values()))


def test_a_complete_run_is_followed_by_dated_ones(names) -> None:
    runs = [trained(name="my-night", on_complete="new") for _ in range(3)]
    dated = f"my-night-{time.strftime('%Y%m%d')}"
    assert [run.name for run in runs] == names() == ["my-night", dated, f"{dated}-2"]
    assert len({run.digest for run in runs}) == 1


def test_nothing_goes_on_with_a_rejected_run_where_that_is_a_failure(capsys) -> None:
    """The judgement and the rounds stay, also when the run is asked for again."""
    assert trained(name="kept", accept="loss < 0").status == "rejected"
    assert trained(name="good", accept="loss > 0", on_rejected="fail").status == "complete"
    handed_out: list[rw.Run] = []
    for _ in range(2):
        with pytest.raises(Rejected, match=r"bad is rejected: loss < 0: .*; the run stays in the store"):
            handed_out.append(trained(name="bad", accept="loss < 0", on_rejected="fail"))
    bad = rw.open_run("bad")
    assert (handed_out, bad.status, bad.done) == ([], "rejected", bad.rounds)
    line = "train --executor inline --name bad-too --rounds 1 --on-rejected fail"
    code, out, err = run(capsys, *line.split(), "--accept", "loss < 0")
    assert (code, out, err.splitlines()[-1][:27]) == (1, "", "error: bad-too is rejected:")


def test_a_dated_run_that_was_cut_off_goes_on(names) -> None:
    trained(name="night", on_complete="new")
    cut = trained(name="night", on_complete="new", rounds=1).address
    longer = trained(name=Path(cut).stem, rounds=3)
    for record in Path(cut, "commits").glob("3.json"):
        record.unlink()
    assert rw.open_run(cut).status != "complete"
    assert trained(name="night", on_complete="new", rounds=3).digest == longer.digest
    assert len(names()) == 2


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
    nightly, today = night(name="night", on_complete="new", batch_size=25, **own), time.strftime("%Y%m%d")

    def begin(seed: int, train: Any) -> str:
        (tmp_path / "seed").write_text(str(seed))
        return train(nightly).name

    def fails(seed: int, train: Any) -> None:
        (tmp_path / "down").touch()
        with pytest.raises(RoundFailed):
            begin(seed, train)
        (tmp_path / "down").unlink()

    fails(1, train_flow.fn)
    assert begin(1, rw.train) == "night"  # the same examples: it goes on
    fails(2, rw.train)
    capfd.readouterr()
    assert begin(3, rw.train) == f"night-{today}-2"
    said = capfd.readouterr().err
    assert f"night-{today} is another experiment (data: other examples" in said
    assert said.endswith(f"); night-{today}-2 begins instead, as on_complete says\n")
    assert begin(4, train_flow.fn) == f"night-{today}-3"
    whole = {name: run.status for name, run in looked_through(tmp_path / "runs").items()}
    assert whole.pop(f"night-{today}") == "failed"
    assert [*whole.values()] == ["complete"] * 3
    with pytest.raises(ExperimentDiffers, match="delete that one, which has no round"):
        rw.train(nightly.model_copy(update={"on_complete": None, "name": f"night-{today}"}))
    says = "restore them, or begin another run with these: `roundweave train --from night@-1`"
    with pytest.raises(ExperimentDiffers, match=rf"\(data: other examples[^;]*\); {says}$"):
        train_flow.fn(resumed_config("night", None, False, {"rounds": 3}))


def test_a_complete_run_is_extended_and_is_the_run_that_was_trained_at_once() -> None:
    extended = [trained(name="night", on_complete="extend") for _ in range(3)]
    assert [run.done for run in extended] == [2, 4, 6]
    assert extended[-1].digest == trained(name="once", rounds=6).digest
    assert extended[-1].replay("all").identical


def test_a_complete_run_is_skipped_in_a_line(capfd) -> None:
    first = trained(name="night", on_complete="skip")
    assert first.done == 2
    again = trained(name="night", on_complete="skip", rounds=5)
    assert (again.digest, again.done) == (first.digest, 2)
    assert capfd.readouterr().err == "night is complete, 2 rounds; skipped, as on_complete says\n"


def test_a_date_enters_the_name_and_no_number() -> None:
    run = trained(name="night-{date}")
    assert run.name == f"night-{time.strftime('%Y%m%d')}"
    assert run.digest == trained(name="plain").digest
    assert run.replay("all").identical
    again = trained(name="night-{date}", on_complete="new")
    assert (again.name, again.done) == (f"{run.name}-2", 2)


def test_each_night_begins_with_the_network_of_the_newest_complete_run(capfd) -> None:
    first = trained(name="night-1", start_from="night-*@-1")
    assert re.fullmatch(r"no run night-\* is complete under .*; night-1 begins .*\n", capfd.readouterr().err)
    other = trained(name="other", seed=7)
    second = trained(name="night-2", start_from="night-*@-1")
    third = trained(name="night-3", start_from="night-*@1")
    begins = [tensors_digest(run.round(0)) for run in (second, third)]
    assert begins == [tensors_digest(first.round(2)), tensors_digest(second.round(1))]
    assert tensors_digest(other.round(2)) not in begins
    assert second.replay("all").identical
    assert second.config["start_from"]["reference"] == f"{first.address}@2"


@pytest.mark.thorough
def test_a_second_night_of_a_day_begins_as_the_configuration_says() -> None:
    """And not as the first one of that day, which had no run to begin with."""
    runs = [trained(name="night-{date}", on_complete="new", start_from="night-*@-1") for _ in range(3)]
    assert [run.parent for run in runs] == [None, *(f"{run.name}@2" for run in runs[:2])]


def test_a_night_that_goes_on_keeps_what_it_began_with() -> None:
    nightly = {"start_from": "night-*@-1"}
    for number in (1, 2, 3):
        trained(name=f"night-{number}", **nightly)
    longer = trained(name="night-2", rounds=4, **nightly)
    assert longer.done == 4
    with pytest.raises(ExperimentDiffers, match="start_from"):
        trained(name="night-2", rounds=4, start_from="night-3@-1")


def test_runs_that_are_not_complete_or_damaged_are_passed_over(capfd) -> None:
    whole = trained(name="night-1")
    cut = trained(name="night-2")
    Path(cut.address, "commits", "2.json").unlink()
    damaged = trained(name="night-3")
    Path(damaged.address, "zarr.json").write_text("{")
    now, run = find(configure(night(name="night-4", start_from="night-*@-1")))
    assert run is None
    assert now.start_from == f"{whole.address}@-1"
    assert capfd.readouterr().err.startswith("night-3 is skipped: ")


def test_a_run_that_is_busy_is_refused_or_skipped() -> None:
    run = trained(name="night")
    with hold_lease(place_of(run.address), "another", 2):
        with pytest.raises(RunBusy, match="is being written by process"):
            trained(name="night", rounds=3)
        assert trained(name="night", rounds=3, on_busy="skip").done == 2
