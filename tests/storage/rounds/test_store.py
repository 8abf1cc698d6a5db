"""The round store: what is written comes back, what is damaged does not, and xarray reads all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from roundweave.storage.errors import ExperimentDiffers, NotARun, RoundMissing, StoreDamaged
from roundweave.storage.hierarchy.schema import ROWS, VERSION, Schema, number_array
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.pruned import Pruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.storage.values.digests import update_vectors
from roundweave.storage.values.state import Layout, State
from roundweave.storage.values.tensors import TensorSpec, empty_vectors, to_numpy
from tests.storage.conftest import contents, lengthened, plain, thorough
from tests.storage.upkeep.dying import Killed

WEIGHT = "params/fc.weight/c/{}/0/0"


def test_a_run_is_never_made_over_another(tiny) -> None:
    store = tiny.create()
    before = contents(store.place)
    with pytest.raises(ExperimentDiffers, match=r"tiny\.zarr exists already; give the new run another name"):
        tiny.create(rounds=9)
    assert contents(store.place) == before
    assert [path.name for path in store.path.parent.iterdir()] == ["tiny.zarr"]


def test_an_update_that_was_not_committed_is_missing(tiny) -> None:
    store = tiny.create()
    commit = tiny.write(store, 1)
    with pytest.raises(RoundMissing, match="no committed round 1"):
        store.tensors.read_update(1, 0)
    store.commit(replace(commit, updates={0: commit.updates[0]}))
    store.tensors.read_update(1, 0)
    with pytest.raises(RoundMissing, match="partition 1 took no part in round 1"):
        store.tensors.read_update(1, 1)


# More rounds.


def test_extending_to_what_is_there_or_less_changes_no_file(tiny) -> None:
    store = lengthened(tiny.train(tiny.create(rounds=3), 2), 5)
    before = contents(store.place)
    assert lengthened(store, 5).rounds == lengthened(store, 2).rounds == 5
    assert contents(store.place) == before


@pytest.mark.parametrize("name", ["params/scale", "commits", *thorough("updates/float32", "metrics/train_loss")])
def test_extending_keeps_the_rows_and_is_finished_the_next_time_where_it_was_cut_short(
    tiny, monkeypatch, same, name
) -> None:
    """The process dies as it is about to resize this array."""
    store, last = tiny.train(tiny.create(rounds=1), 1), ROWS + 6
    write = LocalPlace.write

    def dying(place: LocalPlace, key: str, *pieces: bytes, **durable: bool) -> None:
        if key == f"{name}/zarr.json":
            raise Killed
        write(place, key, *pieces, **durable)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(LocalPlace, "write", dying)
        lengthened(store, last)
    longer = lengthened(store, last)
    arrays = store.schema.arrays(last + 1)
    arrays |= {path: number_array(path, last + 1) for path in ("scores/loss", "metrics/train_loss")}
    shapes = {path: tuple(json.loads((store.path / path / "zarr.json").read_text())["shape"]) for path in arrays}
    assert shapes == {path: spec.shape for path, spec in arrays.items()}
    longer.commit(tiny.write(longer, last))
    recover(longer)
    assert all(same(longer.tensors.read_state(round), tiny.state(round)) for round in (0, 1, last))
    root = xr.open_zarr(store.path, consolidated=False)
    assert root["round"].values.tolist() == list(range(last + 1))
    assert np.flatnonzero(root.coords["committed"].values).tolist() == [0, 1, last]


# Damage.


def test_rounds_after_a_damaged_one_stay_while_the_last_is_whole_and_go_with_it(tiny, flip) -> None:
    store = tiny.create()
    for round in (1, 2, 3):
        store.commit(tiny.write(store, round, carry_from={0: round, 1: round}))
    flip(store.path / WEIGHT.format(2))
    assert recover(store) == (3, [])
    with pytest.raises(StoreDamaged):
        store.tensors.read_state(2)
    flip(store.path / "carry/variate/float32/c/3/1/0")
    assert recover(store) == (1, [2, 3])


# What zarr and xarray see; a warning would be an error.


@pytest.mark.parametrize("every_in", [1, 2], ids=["alone", "shards"], indirect=True)
def test_what_is_written_comes_back_to_us_to_zarr_and_to_xarray(every) -> None:
    """Every kind of tensor, whether partitions share files or not; a warning of either would be an error."""
    store = every.whole()
    group = zarr.open_group(store.path, mode="r", zarr_format=3, use_consolidated=False)
    tree = xr.open_datatree(store.path, engine="zarr", consolidated=False, chunks=None, mask_and_scale=False)
    for path, spec in store.schema.arrays(5).items():
        assert (group[path].shape, group[path].metadata.dimension_names) == (spec.shape, spec.dims)
        assert (tree[path].shape, tree[path].dims) == (spec.shape, spec.dims)
        assert plain(tree[path].values) == plain(np.asarray(group[path][...]))
    for round in range(5):
        assert plain(store.tensors.read_state(round)) == plain(every.state(round))
        for path, tensor in every.state(round).named(store.schema.layout).items():
            found = group[path][...] if path.startswith("frozen/") else group[path][round]
            assert plain(np.asarray(found)) == plain(to_numpy(tensor))
    for round, partition in product(range(1, 5), range(2)):
        update, match = every.update(round, partition), every.match(round, partition)
        assert plain(store.tensors.read_update(round, partition)) == plain(update)
        assert plain(store.tensors.read_carry(round, partition)) == plain(update.carry)
        assert plain(store.tensors.read_match(round, partition)) == plain(match)
        sent = {path: to_numpy(vector) for path, vector in update_vectors(update).items()}
        sent |= {f"permutations/{name}": order.numpy() for name, order in match.permutation.items()}
        sent |= {f"similarities/{name}": near.numpy() for name, near in match.similarity.items()}
        for path, wanted in sent.items():
            assert plain(np.asarray(group[path][round, partition])) == plain(wanted)


DAMAGED_SPLITS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda folder: None,
    "a chunk is missing": lambda folder: (folder / "c/0").unlink(),
    "a chunk is empty": lambda folder: (folder / "c/0").write_bytes(b""),
    "a chunk is another": lambda folder: (folder / "c/0").write_bytes(bytes((folder / "c/0").stat().st_size)),
    "no document": lambda folder: (folder / "zarr.json").unlink(),
    "a cut document": lambda folder: (folder / "zarr.json").write_text("{"),
}


SPLITS = [*DAMAGED_SPLITS]


@pytest.mark.parametrize("damage", [*SPLITS[:2], *thorough(SPLITS[2]), *SPLITS[3:5], *thorough(SPLITS[5])])
def test_a_split_is_made_once_and_again_where_it_is_missing_or_damaged(tiny, damage) -> None:
    store, asked = tiny.create(), []

    def owner(number: int) -> np.ndarray:
        asked.append(number)
        return np.array([0, 1, -1, 1], np.int32)

    for number in (0, 1, 0):
        store.splits.write(number, owner)
    DAMAGED_SPLITS[damage](store.path / "partitions/0")
    store.splits.write(0, owner)
    assert asked == ([0, 1] if damage == "nothing" else [0, 1, 0])
    with xr.open_datatree(store.path, engine="zarr", consolidated=False) as tree:
        assert tree["partitions/0"].values.tolist() == [0, 1, -1, 1]
        assert tree["partitions/0"].dims == ("example",)


# What is no run.

GROUP = '{"zarr_format": 3, "node_type": "group", "attributes": {"title": "of somebody else"}}'


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[]", "null", '{"attributes": {}}', '{"attributes": []}', GROUP]
)
def test_a_folder_that_is_no_run_is_refused(tmp_path, content) -> None:
    if content is not None:
        (tmp_path / "zarr.json").write_text(content)
    with pytest.raises(NotARun, match="is not a run of Roundweave"):
        RoundStore(tmp_path)


@pytest.mark.parametrize(("content", "said"), [(None, "missing"), ("{", "damaged")])
def test_a_run_without_its_attributes_is_told_what_to_restore(tiny, content, said) -> None:
    path = tiny.create().path
    (path / "zarr.json").unlink()
    if content is not None:
        (path / "zarr.json").write_text(content)
    line = f"{path}/zarr.json: it is {said}, and describes the run; restore the file from a copy"
    with pytest.raises(NotARun, match=re.escape(line)):
        RoundStore(path)
    (finding,) = [str(finding) for finding in verify(path).findings if finding.path == "zarr.json"]
    assert finding == line.removeprefix(f"{path}/")


def test_a_run_of_a_later_version_is_refused(tiny) -> None:
    store = tiny.create()
    path = store.path / "zarr.json"
    path.write_text(path.read_text().replace(f'"version": {VERSION}', '"version": 99'))
    with pytest.raises(NotARun, match=f"has store version 99, this Roundweave {VERSION}; open it with"):
        RoundStore(store.path)


def test_the_bytes_of_a_run_count_frozen_tensors_once(tmp_path) -> None:
    """By hand: w has 24 bytes, b 8 and the frozen table 40.

    A state is w, its velocity and b, 56 bytes; an update is w, its control and variate, and b, 80 bytes.
    """
    layout = Layout(
        (TensorSpec("w", "float32", (2, 3)),),
        (TensorSpec("b", "bfloat16", (4,)),),
        (TensorSpec("table", "float64", (5,)),),
    )
    schema = Schema(layout, 2, memory=("velocity",), carry=("variate",), extras=("control",))
    assert (schema.state_bytes, schema.update_bytes) == (56, 80)
    assert schema.stored_bytes(states=0, updates=0) == 40
    state = State(*map(empty_vectors, (layout.params, layout.buffers, layout.frozen)))
    state = replace(state, memory={"velocity": empty_vectors(layout.params)})
    tensors = RoundStore.create(tmp_path / "bytes.zarr", schema, 3, {}, state).tensors
    assert tensors.kept_bytes(0, Pruned()) == 40 + 56
    assert tensors.kept_bytes(3, Pruned()) == 40 + 4 * 56 + 3 * 2 * 80
    pruned = Pruned(frozenset({1, 2}), frozenset({1, 3}), frozenset({(1, 0)}))
    assert tensors.kept_bytes(3, pruned) == 40 + 2 * 56 + (2 + 1) * 80
