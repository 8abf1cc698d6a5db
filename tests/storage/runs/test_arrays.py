"""A run as xarray: what is committed, read when its values are used, and verified then."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
import xarray as xr

from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.commits import Score
from roundweave.storage.rounds.splits import split_record
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.arrays import lazy_variable
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.values.state import Layout, State
from roundweave.storage.values.tensors import TensorSpec, views


@pytest.fixture
def run(tiny) -> StoredRun:
    """Rounds 0 to 3, of which 3 is not committed; partition 0 is refused in round 2."""
    store = tiny.create()
    owners = np.array([-1, 1, 0, 1], np.int32)
    store.splits.write(0, lambda number: owners)
    split = split_record(0, owners)
    store.commit(tiny.write(store, 1, split=split))
    store.commit(tiny.write(store, 2, refused=(0,), split=split))
    tiny.write(store, 3)
    return StoredRun(store.path)


def shown(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float32).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def test_a_data_set_has_the_committed_states_under_their_names(tiny, run) -> None:
    """So has the run, by item; a tied tensor has both its names."""
    ds = run.ds
    assert ds["round"].values.tolist() == run["scale"]["round"].values.tolist() == [0, 1, 2]
    assert ds["partition"].values.tolist() == [0, 1]
    for path in run.tensors:
        name = path if path.startswith("memory/") else path.partition("/")[2]
        for round in range(3):
            wanted = shown(tiny.state(round).named(tiny.schema.layout)[path])
            for array in (ds[name], run[name]):
                found = array if path.startswith("frozen/") else array.sel(round=round)
                np.testing.assert_array_equal(found, wanted)
                assert found.dtype == wanted.dtype
                assert found.dims == tuple(f"{run[name].name}.{axis}" for axis in range(wanted.ndim))
    assert ds["coarse"].attrs == {"logical_dtype": "bfloat16"}
    assert run["head.weight"].identical(run["fc.weight"])


def test_a_data_set_has_the_numbers_too(run) -> None:
    ds = run.ds
    np.testing.assert_array_equal(ds["accuracy"], [np.nan, 0.25, 0.5])
    np.testing.assert_array_equal(ds["accepted"], [[np.nan, np.nan], [1, 1], [0, 1]])
    assert ds["train_loss"].sel(round=2, partition=1) == 3.0
    history = run.history()
    for column in ("loss", "accuracy", "seconds"):
        np.testing.assert_array_equal(ds[column], history[column])


def test_no_tensor_is_read_before_its_values_are_used(run, monkeypatch) -> None:
    keys, read = [], LocalPlace.read
    monkeypatch.setattr(LocalPlace, "read", lambda at, key, most=None: keys.append(key) or read(at, key, most))
    ds, tree = run.ds, run.tree
    repr(ds), ds._repr_html_(), repr(tree), tree._repr_html_()
    groups = {key.partition("/")[0] for key in keys}
    assert not groups & {"params", "buffers", "frozen", "memory", "updates", "carry"}
    keys.clear()
    assert ds["fc.weight"].sel(round=1).values.shape == (3, 2)
    assert [key for key in keys if not key.startswith("commits/")] == ["params/fc.weight/c/1/0/0"]


def test_the_tree_has_the_accepted_updates_by_tensor(tiny, run) -> None:
    tree, layout = run.tree, tiny.schema.layout
    for round, partition in ((1, 0), (1, 1), (2, 1)):
        update = tiny.update(round, partition)
        told = {
            **{f"updates/{name}": tensor for name, tensor in views(layout.params, update.direction).items()},
            **{f"arrived/{name}": tensor for name, tensor in views(layout.buffers, update.buffers).items()},
            **{f"extras/control/{n}": t for n, t in views(layout.params, update.extras["control"]).items()},
            **{f"carry/variate/{n}": t for n, t in views(layout.params, update.carry["variate"]).items()},
        }
        for path, tensor in told.items():
            array = tree[path].sel(round=round, partition=partition)
            np.testing.assert_array_equal(array, shown(tensor))
            assert array.dims == tuple(f"{path}.{axis}" for axis in range(tensor.ndim))
    for absent in ({"round": 0}, {"round": 2, "partition": 0}):
        assert np.isnan(tree["updates/fc.weight"].sel(absent)).all()
        assert np.isnan(tree["arrived/norm.count"].sel(absent)).all()


def test_the_tree_has_groups_for_all_that_is_stored(run) -> None:
    tree = run.tree
    assert set(tree.children) == {
        *("params", "buffers", "frozen", "memory", "updates", "arrived", "extras", "carry"),
        *("scores", "metrics", "bookkeeping", "partitions"),
    }
    assert tree["partitions/0"].values.tolist() == [-1, 1, 0, 1]
    assert tree["memory/velocity/scale"].dims == ("round",)
    xr.testing.assert_identical(tree["params/fc.weight"].drop_vars("round"), run["fc.weight"].drop_vars("round"))


def test_matches_are_shown_where_units_were_matched(every) -> None:
    run = StoredRun(every.whole().path)
    tree = run.tree
    for kind in ("permutations", "similarities"):
        assert sorted(tree[kind].data_vars) == ["fc", "mix"]
        for group, found in tree[kind].data_vars.items():
            np.testing.assert_array_equal(found.sel(round=1), getattr(run.round(1), kind)[group])
            assert np.isnan(found.sel(round=0)).all()


def test_a_name_of_two_things_is_that_of_the_first(tiny) -> None:
    """Parameters go before scores, and those before metrics; coordinates keep their names."""
    layout = Layout(params=(TensorSpec("loss", "float32", (2,)), TensorSpec("round", "float32", ())))
    state = State({"float32": torch.ones(3)})
    attributes = {"config": {"algorithm": {"name": "fed_avg"}}, "created": 1.0}
    store = RoundStore.create(tiny.folder / "odd.zarr", Schema(layout, 1), 1, attributes, state)
    run = StoredRun(store.path)
    assert run.ds["loss"].dims == ("round", "loss.0")
    assert run.ds["params/round"].values.tolist() == [1.0]
    assert run.ds["round"].values.tolist() == [0]
    assert run.tree["params/round_"].values.tolist() == [1.0]
    store = tiny.create()
    metrics = tiny.write(store, 1, score=Score(0.5, {"train_loss": 0.75}, 8))
    store.commit(metrics)
    ds = StoredRun(store.path).ds
    assert ds["train_loss"].dims == ("round",)
    assert ds["metrics/train_loss"].sel(round=1).values.tolist() == [1.0, 2.0]


def test_a_tree_can_be_saved_and_opened_without_roundweave(run, tmp_path) -> None:
    run.tree.load().to_zarr(tmp_path / "copy.zarr", consolidated=False)
    copy = xr.open_datatree(tmp_path / "copy.zarr", engine="zarr", consolidated=False, chunks=None)
    np.testing.assert_array_equal(copy["updates/fc.weight"], run.tree["updates/fc.weight"])


def test_what_was_pruned_is_nan_among_numbers_of_all_rounds(tiny) -> None:
    store = tiny.train(tiny.create(), 3)
    whole, tensor = StoredRun(store.path).ds.load(), StoredRun(store.path)["fc.weight"].load()
    prune_run(store, Keep.of("last:1"))
    run = StoredRun(store.path)
    xr.testing.assert_identical(run.ds["loss"].load(), whole["loss"])
    for name, array in run.ds.items():
        # Frozen tensors have no rounds, and are never pruned.
        rows = {"round": [0, 3]} if "round" in array.dims else {}
        np.testing.assert_array_equal(array.sel(rows), whole[name].sel(rows))
    assert np.isnan(run.ds["fc.weight"].sel(round=[1, 2])).all()
    assert run["fc.weight"]["round"].values.tolist() == run.kept == [0, 3]
    xr.testing.assert_identical(run["fc.weight"].load(), tensor.sel(round=[0, 3]))
    sent = run.tree["updates/fc.weight"]
    assert np.isnan(sent.sel(round=[1, 2])).all()
    assert not np.isnan(sent.sel(round=3)).any()


NEEDED = ("ExplicitIndexer", "IndexingSupport", "LazilyIndexedArray", "explicit_indexing_adapter")


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_not_public_of_xarray_is_there(name: str) -> None:
    indexing = importlib.import_module("xarray.core.indexing")
    assert hasattr(indexing, name), (
        f"xarray {xr.__version__} has no xarray.core.indexing.{name} any more, "
        "which storage/runs/arrays.py needs: see its guide to backends for what has come in its place"
    )


def test_values_are_read_when_they_are_used_and_no_others() -> None:
    asked: list[tuple[int, int]] = []

    def read(row: int, partition: int) -> np.ndarray:
        asked.append((row, partition))
        return np.array([row, partition, 7.0])

    variable = lazy_variable((4, 5, 3), ("round", "partition", "x"), "float64", 2, read)
    part = variable[1:4:2, [0, 4]][:, :, 1:]
    assert (asked, part.shape) == ([], (2, 2, 2))
    np.testing.assert_array_equal(part, [[[0, 7], [4, 7]], [[0, 7], [4, 7]]])
    assert asked == [(1, 0), (1, 4), (3, 0), (3, 4)]
