"""A run that begins with a network begins with its very bits, and knows it again."""

from __future__ import annotations

import pytest

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import CheckpointError, ExperimentDiffers, UsageError
from tests.tasks.merging.by_hand import same_bits

FIELDS = {"model": "mlp", "model_options": {"hidden": 8}, "partitions": 2, "local_epochs": 1}


@pytest.fixture
def parent(train):
    return train(name="parent", rounds=2, **FIELDS)


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_a_run_begins_with_a_file_or_a_stored_round(train, tmp_path, model) -> None:
    fields = {**FIELDS, "model": model, "model_options": {}}
    parent = train(name="parent", rounds=2, **fields)
    write_checkpoint(tmp_path / "a.safetensors", parent.round(2).tensors)
    by_round = train(name="by_round", rounds=1, start_from="parent@2", **fields)
    by_file = train(name="by_file", rounds=1, start_from=str(tmp_path / "a.safetensors"), **fields)
    assert same_bits(by_round.round(0).tensors, parent.round(2).tensors)
    assert by_file.digest == by_round.digest
    assert by_file.config["start_from"]["digest"] == by_round.config["start_from"]["digest"]


def test_the_last_round_is_recorded_by_its_number(parent, train) -> None:
    run = train(name="next", rounds=1, start_from="parent@-1", **FIELDS)
    assert run.config["start_from"]["reference"] == f"{parent.path.resolve()}@2"


def test_a_run_goes_on_without_the_file_that_it_began_with(train, parent, tmp_path) -> None:
    place = tmp_path / "a.pt"
    write_checkpoint(place, parent.round(2).tensors)
    once = train(name="once", rounds=3, start_from=str(place), **FIELDS)
    cut = train(name="cut", rounds=1, start_from=str(place), **FIELDS)
    start = cut.config["start_from"]
    place.unlink()
    assert train(name="cut", rounds=3, start_from=start, **FIELDS).digest == once.digest
    with pytest.raises(CheckpointError, match="there is no such file"):
        train(name="anew", rounds=1, start_from=start, **FIELDS)


def test_another_start_is_another_experiment(train, parent) -> None:
    train(name="next", rounds=1, start_from="parent@2", **FIELDS)
    with pytest.raises(ExperimentDiffers, match=r"start_from .*parent\.zarr@2 .* -> .*parent\.zarr@1"):
        train(name="next", rounds=2, start_from="parent@1", **FIELDS)
    with pytest.raises(ExperimentDiffers, match="start_from"):
        train(name="next", rounds=2, **FIELDS)


def test_a_file_that_has_changed_is_not_what_was_recorded(train, parent, tmp_path) -> None:
    place = tmp_path / "a.pt"
    write_checkpoint(place, parent.round(2).tensors)
    start = train(name="first", rounds=1, start_from=str(place), **FIELDS).config["start_from"]
    write_checkpoint(place, parent.round(1).tensors)
    with pytest.raises(CheckpointError, match=r"a\.pt is not what the run was to begin with; restore it"):
        train(name="again", rounds=1, start_from=start, **FIELDS)


def test_what_does_not_fit_is_refused_before_a_run_is_there(train, parent, tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"parent\.zarr@2: 'fc1.weight' is float of shape \(8, 64\), but"):
        train(name="wide", start_from="parent@2", **FIELDS | {"model_options": {"hidden": 9}})
    with pytest.raises(UsageError, match="init = per-partition gives each partition weights of its own"):
        train(name="apart", start_from="parent@2", init="per-partition", **FIELDS)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["parent.zarr"]
