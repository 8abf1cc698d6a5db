"""A run as xarray: what is committed, read when its values are used, and verified then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

from roundweave.flows.stored import Run
from roundweave.storage.errors import RoundMissing, TensorMissing
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.commits import Score
from roundweave.storage.rounds.splits import split_record
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.values.state import Layout, State
from roundweave.storage.values.tensors import TensorSpec, views
from tests.storage.conftest import ATTRIBUTES


@pytest.fixture
def run(tiny) -> Run:
    """Rounds 0 to 3, of which 3 is not committed; partition 0 is refused in round 2."""
    store = tiny.create()
    owners = np.array([-1, 1, 0, 1], np.int32)
    store.splits.write(0, lambda number: owners)
    split = split_record(0, owners)
    store.commit(tiny.write(store, 1, split=split))
    store.commit(tiny.write(store, 2, refused=(0,), split=split))
    tiny.write(store, 3)
    return Run(store.path)


def shown(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float32).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def test_names_of_partitions_lie_beside_their_numbers_and_select(tiny) -> None:
    """An older run, without names, has the numbers alone."""
    run = tiny.run({}, {"refused": (0,)}, names=("berlin", "paris"))
    assert run.partition_names == ("berlin", "paris")
    sent = run.tree["updates/scale"]
    for array in (run.ds, sent, run.tree["metrics"].ds):
        assert array["partition"].values.tolist() == [0, 1]
        assert array["partition_name"].values.tolist() == ["berlin", "paris"]
    assert "partition_name" not in run.tree["params"].ds.coords
    wanted = shown(views(tiny.schema.layout.params, tiny.update(1, 1).direction)["scale"])
    assert sent.set_xindex("partition_name").sel(round=1, partition_name="paris") == wanted
    assert sent.swap_dims(partition="partition_name").sel(round=1, partition_name="paris") == wanted
    second = run.round(2).updates["scale"]
    assert (second["partition"].values.tolist(), second["partition_name"].values.tolist()) == ([1], ["paris"])
    assert run.round(1).updates["scale"].sel(partition=1) == run.round(1).update_tensors("paris")["updates/scale"]
    old = tiny.run({}, name="old")
    assert [*old.partition_names] == [0, 1]
    assert "partition_name" not in {
        *old.ds.coords,
        *old.tree["updates"].ds.coords,
        *old.round(1).updates["scale"].coords,
    }


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
    run = Run(every.whole().path)
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
    store = RoundStore.create(tiny.folder / "odd.zarr", Schema(layout, 1), 1, ATTRIBUTES, state)
    run = Run(store.path)
    assert run.ds["loss"].dims == ("round", "loss.0")
    assert run.ds["params/round"].values.tolist() == [1.0]
    assert run.ds["round"].values.tolist() == [0]
    assert run.tree["params/round_"].values.tolist() == [1.0]
    ds = tiny.run({"score": Score(0.5, {"train_loss": 0.75}, 8)}).ds
    assert ds["train_loss"].dims == ("round",)
    assert ds["metrics/train_loss"].sel(round=1).values.tolist() == [1.0, 2.0]


@pytest.mark.thorough
def test_a_tree_can_be_saved_and_opened_without_roundweave(run, tmp_path) -> None:
    run.tree.load().to_zarr(tmp_path / "copy.zarr", consolidated=False)
    copy = xr.open_datatree(tmp_path / "copy.zarr", engine="zarr", consolidated=False, chunks=None)
    np.testing.assert_array_equal(copy["updates/fc.weight"], run.tree["updates/fc.weight"])


def test_what_was_pruned_is_nan_among_numbers_of_all_rounds(tiny) -> None:
    store = tiny.train(tiny.create(), 3)
    whole, tensor = Run(store.path).ds.load(), Run(store.path)["fc.weight"].load()
    prune_run(store, Keep.of("last:1"))
    run = Run(store.path)
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


# How a reduce matched units: by group; what was not is said.


@pytest.fixture
def matched(every) -> Run:
    """Two rounds with units of a permutation, `fc`, and a mixture, `mix`; partition 0 is refused."""
    store = every.create()
    for round in (1, 2):
        store.commit(every.write(store, round, refused=(0,)))
    return Run(store.path)


def test_a_mixture_has_a_similarity_a_unit_and_a_permutation_one_in_each_place(tiny) -> None:
    """Units that depend on the head they are in have two axes."""
    specs = (TensorSpec("fc1", "float32", (3, 3)), TensorSpec("inner:2", "int64", (2, 4)))
    arrays = replace(tiny.schema, matches=specs).matching(5)
    assert arrays["permutations/inner:2"].shape == arrays["similarities/inner:2"].shape == (5, 2, 2, 4)
    assert arrays["similarities/inner:2"].chunks == (1, 1, 2, 4)
    assert (arrays["permutations/fc1"].shape, arrays["permutations/fc1"].dtype) == ((5, 2, 3, 3), "float32")
    assert (arrays["similarities/fc1"].shape, arrays["similarities/fc1"].dtype) == ((5, 2, 3), "float32")
    assert set(tiny.schema.matching(5)) == set()


def test_permutations_and_similarities_of_a_round(every, matched) -> None:
    found, wanted = matched.round(2), every.match(2, 1)
    assert list(found.permutations) == list(found.similarities) == ["fc", "mix"]
    for kind, dims, dtype in (("fc", ("fc.0",), "int64"), ("mix", ("mix.0", "mix.1"), "float32")):
        array = found.permutations[kind]
        assert (array.dtype, array.dims, array.name) == (np.dtype(dtype), ("partition", *dims), kind)
        assert array["partition"].values.tolist() == [1]
        assert array.sel(partition=1).values.tolist() == wanted.permutation[kind].tolist()
        near = found.similarities[kind]
        assert (near.dtype, near.dims) == (np.dtype("float32"), ("partition", f"{kind}.0"))
        assert near.values[0].tolist() == wanted.similarity[kind].tolist()


def test_what_is_not_matched_or_no_group_is_told(tiny, matched) -> None:
    read = matched._store.tensors.read_match
    for round, partition in ((1, 0), (0, 0), (1, 7)):
        with pytest.raises(RoundMissing, match=rf"round {round} of .* matched no units of partition {partition}"):
            read(round, partition)
    with pytest.raises(RoundMissing, match="no committed round 3"):
        read(3, 0)
    with pytest.raises(TensorMissing, match=r"no group of units 'fc9' is matched; there are fc, mix"):
        matched.round(1).permutations["fc9"]
    with pytest.raises(RoundMissing, match="round 0 matched no units"):
        matched.round(0).similarities["fc"]
    plain = Run(tiny.train(tiny.create("plain"), 1).path).round(1)
    assert list(plain.permutations) == []
    with pytest.raises(TensorMissing, match="there are none"):
        plain.permutations["fc"]
