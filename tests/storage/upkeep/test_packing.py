"""Packing: few files, the same bits through every reader, and no harm from a death on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import RunBusy, StoreDamaged
from storage.hierarchy.chunks import write_chunk
from storage.hierarchy.schema import ArraySpec, Schema
from storage.hierarchy.shards import pack_array, packed_chunks, read_packed, sharded, unpack_array
from storage.places.local import LocalPlace
from storage.rounds.commits import UpdateRecord
from storage.rounds.lease import hold_lease
from storage.rounds.packed import is_packed
from storage.rounds.recovery import recover
from storage.rounds.store import RoundStore
from storage.runs.run import Run
from storage.upkeep.packing import pack_run, unpack_run
from storage.upkeep.verifying.verify import verify
from storage.values.digests import update_digest
from storage.values.layout import Layout
from storage.values.state import State, Update
from storage.values.tensors import TensorSpec
from tests.storage.upkeep.dying import each_death


def tree_of(path: Path) -> xr.DataTree:
    return xr.open_datatree(path, engine="zarr", consolidated=False, chunks=None).load()


def files(store: RoundStore) -> dict[str, bytes]:
    """All that the run is, without its leases."""
    keys = [key for key in store.place.sizes() if not key.startswith("commits/leases")]
    return {key: bytes(store.place.read(key) or b"") for key in keys}


def test_every_reader_has_the_same_bits_before_and_after(tiny, same) -> None:
    store = tiny.train(tiny.create(rounds=7), 5)
    before, tree = files(store), tree_of(store.path)
    pack_run(store)
    assert verify(store.path).sound
    for round in range(6):
        assert same(store.tensors.read_state(round), tiny.state(round))
    for round in range(1, 6):
        for partition in range(2):
            assert same(store.tensors.read_update(round, partition), tiny.update(round, partition))
    assert tree_of(store.path).identical(tree)
    packed = zarr.open_array(store.path / "updates/float32", mode="r")
    assert (packed.shards, packed.chunks) == ((512, 2, 7), (1, 1, 7))
    plain = np.frombuffer(before["updates/float32/c/3/1/0"][:-4], "<f4")
    assert packed[3, 1].tobytes() == plain.tobytes()
    assert np.isnan(packed[6]).all()
    assert Run(store.path)["fc.weight"].values.shape == (6, 3, 2)
    unpack_run(store)
    assert files(store) == before


def test_what_is_packed_already_or_not_at_all_is_left_as_it_is(tiny) -> None:
    store = tiny.train(tiny.create(), 3)
    for work in (pack_run, unpack_run):
        assert work(store)
        before = store.place.sizes()
        assert not work(store)
        assert store.place.sizes() == before, "nor is there another lease"


def test_a_shard_holds_the_chunks_as_they_were_and_an_index(tmp_path: Path) -> None:
    """By hand: 3 rounds of 2 partitions; round 1 has no chunk of partition 0."""
    place, spec = LocalPlace(tmp_path), ArraySpec("u", "int16", (3, 2, 2), (1, 1, 2), ("round", "partition", "e"))
    there = [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    for round, partition in there:
        write_chunk(place, spec, (round, partition), np.array([round, partition], np.int16))
    chunks = [(tmp_path / f"u/c/{round}/{partition}/0").read_bytes() for round, partition in there]
    pack_array(place, spec, lambda index: True)
    content = (tmp_path / "u/c.0.0.0").read_bytes()
    assert content[: 5 * 8] == b"".join(chunks)
    table = np.frombuffer(content[40:-4], "<u8").reshape(512, 2, 2)
    assert table[:3, :, 0].tolist() == [[0, 8], [2**64 - 1, 16], [24, 32]]
    assert table[:3, :, 1].tolist() == [[8, 8], [2**64 - 1, 8], [8, 8]]
    assert (table[3:] == 2**64 - 1).all()
    assert int.from_bytes(content[-4:], "little") == google_crc32c.value(content[40:-4])
    assert sorted(path.name for path in (tmp_path / "u").iterdir()) == ["c.0.0.0", "zarr.json"]
    assert list(packed_chunks(place, spec)) == there
    assert read_packed(place, spec, (1, 0)) is None
    assert read_packed(place, spec, (2, 1)).tolist() == [[[2, 1]]]


@pytest.mark.parametrize(
    ("partitions", "elements", "rounds"),
    [(1, 1, 1024), (100, 1, 10), (100, 1 << 20, 1), (4, (1 << 20) - 1, 4), (2000, 1, 1), (4, 1 << 24, 1)],
)
def test_a_shard_has_at_most_64_mib_and_1024_chunks_but_a_round_at_least(partitions, elements, rounds) -> None:
    shape = (50, partitions, elements)
    spec = ArraySpec("u", "float32", shape, (1, 1, elements), ("round", "partition", "element"))
    assert sharded(spec).shard == rounds


SPEC = TensorSpec("w", "float32", (3,))


def test_a_hundred_partitions_and_fifty_rounds_are_few_files(tmp_path: Path) -> None:
    """By hand: 51 states and 5,000 updates; packed, a shard of states and six of ten rounds' updates."""
    schema = Schema(Layout((SPEC,), (), (), ()), partitions=100)
    initial = State({"float32": torch.zeros(3)}, {}, {}, {}, 0)
    record = {"config": {"algorithm": {"name": "fed_avg"}}, "created": 1.0}
    store = RoundStore.create(tmp_path / "many.zarr", schema, 50, record, initial)
    for round in range(1, 51):
        updates = {}
        for partition in range(100):
            update = Update({"float32": torch.full((3,), float(round * partition))}, {}, {}, 1, {}, {})
            store.tensors.write_update(round, partition, update)
            updates[partition] = UpdateRecord(update_digest(update), 1)
        state = State({"float32": torch.full((3,), float(round))}, {}, {}, {}, round)
        store.tensors.write_state(state)
        commit = store.describe(state, "writer", 1)
        store.commit(type(commit)(**commit.__dict__ | {"updates": updates}))
    others = len(store.place.sizes()) - 5051
    pack_run(store)
    assert len(store.place.sizes()) == others + 2 + 1 + 6, "and the lease and the mark of the packing"
    assert store.tensors.read_update(47, 99).direction["float32"].tolist() == [47 * 99.0] * 3
    assert zarr.open_array(store.path / "updates/float32", mode="r")[47, 99].tolist() == [47 * 99.0] * 3


def test_whenever_packing_or_unpacking_dies_every_reader_has_all_and_the_run_goes_on(small, same) -> None:
    plain = small.train(small.create("plain", rounds=3), 2)
    packed = RoundStore(shutil.copytree(plain.path, plain.path.with_name("packed.zarr")))
    pack_run(packed)
    tree, place = tree_of(plain.path), small.create("dying").path
    for work, start, end in ((pack_run, plain, packed), (unpack_run, packed, plain)):

        def anew(start: RoundStore = start) -> None:
            shutil.rmtree(place)
            shutil.copytree(start.path, place)

        deaths = 0
        for _ in each_death(place, lambda dying, work=work: work(RoundStore(dying)), anew):
            store = RoundStore(place)
            assert verify(store.path).sound
            assert tree_of(place).identical(tree)
            work(store)
            assert files(store) == files(end)
            assert recover(store) == (2, [])
            store.commit(small.write(store, 3))
            assert same(RoundStore(place).tensors.read_update(3, 1), small.update(3, 1))
            assert not is_packed(store.log)
            deaths += 1
        assert deaths >= 9


def test_a_packed_run_goes_on_as_one_that_never_was(tiny) -> None:
    store, other = tiny.train(tiny.create(rounds=2), 2), tiny.train(tiny.create("other", rounds=2), 2)
    pack_run(store)
    for each in (store, other):
        recover(each)
        tiny_more = each.extend(4)
        for round in (3, 4):
            tiny_more.commit(tiny.write(tiny_more, round))
    assert files(store) == files(other)


def test_a_flipped_bit_in_a_shard_is_named_and_no_other_round_is_hurt(tiny, flip, same) -> None:
    store = tiny.train(tiny.create(), 3)
    pack_run(store)
    shard = store.path / "updates/float32/c.0.0.0"
    flip(shard, 32 * 2 + 5)
    with pytest.raises(StoreDamaged, match=r"updates/float32/c\.0\.0\.0: chunk \(2, 0\): the stored bytes"):
        store.tensors.read_update(2, 0)
    assert same(store.tensors.read_update(2, 1), tiny.update(2, 1))
    assert recover(store) == (3, [])
    with pytest.raises(StoreDamaged, match=r"updates/float32/c/2/0/0"):
        store.tensors.read_update(2, 0)


def test_a_flipped_bit_in_the_index_of_a_shard_is_an_error_and_the_shard_stays(tiny, flip, same) -> None:
    store = tiny.train(tiny.create(), 3)
    pack_run(store)
    shard = store.path / "updates/float32/c.0.0.0"
    flip(shard, -100)
    with pytest.raises(StoreDamaged, match=r"updates/float32/c\.0\.0\.0: the stored bytes"):
        store.tensors.read_update(2, 0)
    assert recover(store) == (3, [])
    assert shard.exists()
    flip(shard, -100)
    assert same(store.tensors.read_update(2, 0), tiny.update(2, 0)), "as it has been restored from a copy"


def test_a_shard_with_an_index_of_its_own_making_is_refused(tmp_path: Path) -> None:
    """It is somebody else's: chunks in another order, of other sizes, or beyond the shard."""
    place, spec = LocalPlace(tmp_path), ArraySpec("u", "int16", (2, 1, 2), (1, 1, 2), ("round", "partition", "e"))
    for round in range(2):
        write_chunk(place, spec, (round, 0), np.array([round, 7], np.int16))
    pack_array(place, spec, lambda index: True)
    shard = tmp_path / "u/c.0.0.0"
    content = shard.read_bytes()
    for wrong in (
        [[8, 8], [0, 8]],
        [[0, 8], [0, 8]],
        [[0, 7], [7, 9]],
        [[0, 8], [2**63, 8]],
        [[0, 8], [8, 2**62]],
    ):
        table = np.frombuffer(content[16:-4], "<u8").reshape(-1, 2).copy()
        table[:2] = wrong
        checksum = google_crc32c.value(table.tobytes()).to_bytes(4, "little")
        shard.write_bytes(content[:16] + table.tobytes() + checksum)
        with pytest.raises(StoreDamaged, match="its index is of other chunks"):
            read_packed(place, spec, (0, 0))
    shard.write_bytes(content[-100:])
    with pytest.raises(StoreDamaged, match="the stored bytes are not those that were written"):
        read_packed(place, spec, (0, 0))


def test_a_chunk_with_a_flipped_bit_is_not_packed(tiny, flip) -> None:
    store = tiny.train(tiny.create(), 3)
    flip(store.path / "params/coarse/c/2/0")
    with pytest.raises(StoreDamaged, match="params/coarse/c/2/0: the stored bytes are not those"):
        pack_run(store)
    assert store.place.has("params/coarse/c/2/0")
    assert store.tensors.read_state(3).round == 3


def test_a_run_that_is_written_is_not_packed(tiny) -> None:
    store = tiny.train(tiny.create(), 3)
    with hold_lease(store.place, "mine"), pytest.raises(RunBusy):
        pack_run(store)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["float32", "bool", "int64"]),
    st.sampled_from([(), (3,), (2, 0), (2, 3)]),
    st.integers(1, 3) | st.none(),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2))),
)
def test_any_array_over_rounds_is_packed_and_unpacked(tmp_path_factory, dtype, shape, partitions, there) -> None:
    place = LocalPlace(tmp_path_factory.mktemp("any"))
    head = (4,) if partitions is None else (4, partitions)
    dims = ("round", *(("partition",) if partitions else ()), *map(str, range(len(shape))))
    spec = ArraySpec("a/b", dtype, (*head, *shape), ((1,) * len(head)) + shape, dims)
    there = {(round, p)[: len(head)] for round, p in there if partitions is None or p < partitions}
    for index in there:
        write_chunk(place, spec, index, np.full(spec.chunks, sum(index)).astype(spec.stored))
    contents = {key: place.read(key) for key in place.sizes()}
    pack_array(place, spec, lambda index: True)
    if 0 not in shape:
        assert {*packed_chunks(place, spec)} == there
        array = zarr.open_array(place.path / "a/b", mode="r")
        assert all((array[index] == np.full(shape, sum(index)).astype(spec.stored)).all() for index in there)
    unpack_array(place, spec)
    assert {key: place.read(key) for key in place.sizes() if not key.endswith("zarr.json")} == contents
