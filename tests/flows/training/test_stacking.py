"""Partitions that are stacked, as an option of a run: recorded, gone on with, replayed; and what is refused."""

from __future__ import annotations

import pytest

from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.forking import fork
from roundweave.storage.errors import ExperimentDiffers
from tests.flows.command.in_process import refused
from tests.flows.command.in_process import run as command

FIELDS = {"partitions": 10, "model_options": {"hidden": 16}, "local_steps": 3, "rounds": 2}


def stacked(name: str) -> object:
    return resumed_config(name, None, True, {}).stacked


def test_the_number_is_recorded_as_a_part_of_the_experiment_and_a_run_goes_on_with_it(train) -> None:
    run = train(**FIELDS, stacked=16, name="run")
    assert run.config["stacked"] == 16 == stacked("run")
    with pytest.raises(ExperimentDiffers, match="stacked 16 -> 8"):
        train(**FIELDS, stacked=8, name="run")
    assert run.replay("all").identical
    again = train(**FIELDS | {"rounds": 3}, stacked=16, name="run")
    assert (again.done, again.digest) == (3, train(**FIELDS | {"rounds": 3}, stacked=16, name="whole").digest)
    assert fork("run@2", name="forked").stacked == 16


PARTITIONED = """
import torch
def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20 + partition, 4, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()
"""


@pytest.mark.thorough
def test_partitions_that_are_loaded_where_they_are_mapped_are_stacked_as_well(train, own) -> None:
    fields = {"data": f"{own(PARTITIONED)}:data", "model": "logistic", "partitions": 10, "rounds": 2}
    run = train(**fields, stacked=8, name="run")
    assert run.replay("all").identical


@pytest.mark.thorough
def test_the_command_takes_a_number(capsys, tmp_path) -> None:
    words = ["--partitions=10", "--local-steps=2", "--rounds=1", "--executor=inline", f"--root={tmp_path}"]
    code, out, _ = command(capsys, "train", *words, "--stacked=8", "--name=run", "--json")
    assert code == 0, out
    assert resumed_config("run", str(tmp_path), True, {}).stacked == 8
    for word in ("0", "-1", "auto", "1.5"):
        code, said = refused(capsys, "train", *words, f"--stacked={word}", "--name=bad")
        assert (code, "stacked" in said) == (2, True), word
    assert not (tmp_path / "bad.zarr").exists()
