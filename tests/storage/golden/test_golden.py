"""Stores that this version wrote are read as long as there is a later one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from roundweave.flows.stored import Run
from roundweave.storage.hierarchy.schema import VERSION
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.recovery import recover
from tests.storage.golden import make

HERE = Path(__file__).parent

DIGESTS = {
    "fed_avg": [
        "95f8109c0c8b065d856f719996833609c7fe6e955ca235ce1f3271cacfc8045f",
        "25f7af439c8492503d66770beaa342878eea6221203d698adbd672cae81fbd2b",
        "4beb3b0b245e49d2fbf9e3dae8fe682c2d04ffc8fc02f7451c444980c2bcdd49",
    ],
    "everything": [
        "dd6738eacf454f43669dfe0b04cad54c4bb348ba9d05e7b038f7a440adb495b3",
        "f2359ad19ac454897ab0cc12f527627f875526b710b180f3324eaef5543428aa",
        "a6becb92f73264308ab91f4de2616399f5696aa980e57541a6110800a123d7eb",
    ],
}
"""The states by round; of tensors, not of a store, so every version with BLAKE3 digests has these."""


def opened(folder: Path, name: str) -> Run:
    """A golden store."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Run(folder / f"{name}.zarr")


@pytest.mark.parametrize("name", DIGESTS)
def test_the_states_are_those_that_were_written_also_to_plain_zarr_and_xarray(tmp_path, name) -> None:
    run = opened(tmp_path, name)
    assert run.committed == [0, 1, 2]
    assert [run.round(number).commit.state for number in run.committed] == DIGESTS[name]
    for number in run.committed:
        assert run.round(number).state.round == number
    assert run.status == "interrupted"
    assert run.verify().findings == ()
    run.tree.load()
    attributes = dict(zarr.open_group(run.path, mode="r").attrs)
    assert (attributes["version"] <= VERSION, attributes["digest"]) == (True, "blake3")
    with xr.open_datatree(run.path, engine="zarr", consolidated=False, chunks=None) as tree:
        np.testing.assert_array_equal(tree["params/fc.weight"][:3], run["fc.weight"])


def test_a_plain_run_has_the_numbers_that_were_written(tmp_path) -> None:
    run = opened(tmp_path, "fed_avg")
    assert run["fc.weight"].shape == (3, 2, 3)
    for round, value in enumerate((1, 1 - 7 / 32, 1 - 21 / 32)):
        assert (run.ds["fc.bias"].sel(round=round) == value).all()
    for round in (1, 2):
        np.testing.assert_array_equal(run.round(round).updates["fc.bias"], [[round / 8] * 2, [round / 4] * 2])
    history = run.history()
    np.testing.assert_array_equal(history["loss"], [np.nan, 1.0, 0.5])
    np.testing.assert_array_equal(history["accuracy"], [np.nan, 0.25, 0.5])
    np.testing.assert_array_equal(history["train_loss"], [np.nan, 1.25, 1.25])
    assert history["examples"].tolist() == [0, 4, 4]
    assert history["seconds"].tolist() == [0, 0.5, 0.5]
    assert (run.round(-1).owners == 1).nonzero()[0].tolist() == [0, 3, 4]
    assert (run.algorithm, run.partitions, run.rounds) == ("fed_avg", 2, 3)


def test_every_kind_of_tensor_is_read(tmp_path, tiny, same) -> None:
    run = opened(tmp_path, "everything")
    assert run.round(2).refused == {1: "not sound"}
    assert run.round(2).commit.carry_from == {0: 2, 1: 1}
    assert run.history()["accepted"].tolist() == [0, 2, 1]
    for round in range(3):
        assert same(run.round(round).state, tiny.state(round))
    for round, partition in ((1, 0), (1, 1), (2, 0), (2, 1)):
        assert same(run.round(round).update(partition), tiny.update(round, partition))
    for round in (1, 2):
        assert same(run.round(round).match(0), make.matched(round))


@pytest.mark.parametrize("name", DIGESTS)
def test_a_store_of_an_earlier_version_goes_on(tmp_path, name) -> None:
    """Its copies of the numbers of each partition go, and nothing that is told changes."""
    run = opened(tmp_path, name)
    before, copies = run.history(), sorted(run.path.rglob("bookkeeping/*/c/*/*"))
    assert copies
    assert recover(RoundStore(run.path)) == (2, [])
    assert run.refresh().history().equals(before)
    assert run.verify().findings == () and not any(copy.exists() for copy in copies)
