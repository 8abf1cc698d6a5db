"""A run that begins with a network begins with its very bits, and knows it again."""

from __future__ import annotations

import pytest

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import CheckpointError, ExperimentDiffers
from tests.runs import SMALL, STEPS
from tests.tasks.merging.by_hand import same_bits

FIELDS = {**SMALL, **STEPS, "rounds": 1}


@pytest.fixture
def parent(stored):
    return stored("plain")


@pytest.fixture
def place(parent, tmp_path):
    """A file with the network after the second round of the parent."""
    write_checkpoint(tmp_path / "a.safetensors", parent.round(2).tensors)
    return tmp_path / "a.safetensors"


def test_a_run_begins_with_a_file_or_a_stored_round(train, parent, place) -> None:
    by_round = train(name="by_round", start_from="plain@2", **FIELDS)
    by_file = train(name="by_file", start_from=str(place), **FIELDS)
    assert same_bits(by_round.round(0).tensors, parent.round(2).tensors)
    assert by_file.digest == by_round.digest
    assert by_file.config["start_from"]["digest"] == by_round.config["start_from"]["digest"]


def test_buffers_are_those_of_the_start_too(train, tmp_path) -> None:
    fields = {**FIELDS, "model": "cnn", "model_options": {}}
    parent = train(name="parent", **fields)
    child = train(name="child", start_from="parent@-1", **fields)
    assert same_bits(child.round(0).tensors, parent.round(1).tensors)
    assert child.config["start_from"]["reference"] == f"{parent.path.resolve()}@1"


def test_a_run_goes_on_without_the_file_that_it_began_with(train, place) -> None:
    once = train(name="once", start_from=str(place), **FIELDS | {"rounds": 2})
    start = train(name="cut", start_from=str(place), **FIELDS).config["start_from"]
    place.unlink()
    assert train(name="cut", start_from=start, **FIELDS | {"rounds": 2}).digest == once.digest
    with pytest.raises(CheckpointError, match="there is no such file"):
        train(name="anew", start_from=start, **FIELDS)


def test_another_start_is_another_experiment(train, parent) -> None:
    train(name="next", start_from="plain@2", **FIELDS)
    with pytest.raises(ExperimentDiffers, match=r"start_from .*plain\.zarr@2 .* -> .*plain\.zarr@1"):
        train(name="next", start_from="plain@1", **FIELDS | {"rounds": 2})
    with pytest.raises(ExperimentDiffers, match="start_from"):
        train(name="next", **FIELDS | {"rounds": 2})


def test_a_file_that_has_changed_is_not_what_was_recorded(train, parent, place) -> None:
    start = train(name="first", start_from=str(place), **FIELDS).config["start_from"]
    write_checkpoint(place, parent.round(1).tensors)
    with pytest.raises(CheckpointError, match=r"a\.safetensors is not what the run was to begin with; restore it"):
        train(name="again", start_from=start, **FIELDS)


def test_what_does_not_fit_is_refused_before_a_run_is_there(train, parent, tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"plain\.zarr@2: 'fc1.weight' is float of shape \(6, 64\), but"):
        train(name="wide", start_from="plain@2", **FIELDS | {"model_options": {"hidden": 9}})
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["plain.zarr"]
