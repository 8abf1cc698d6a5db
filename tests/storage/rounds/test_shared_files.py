"""Runs whose partitions share files are read, verified, pruned, copied and gone on with as any others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import NotARun, RoundPruned, UsageError
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.copying import copy_run
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import Layout
from roundweave.storage.values.tensors import TensorSpec

PARTITIONS = 5


@pytest.fixture
def many(tiny):
    """Makes runs of five partitions, three to a file, which carry something and are all in each round."""

    class Many(type(tiny)):
        schema = replace(tiny.schema, partitions=PARTITIONS, shard=3)

        def write(self, store, round, present=tuple(range(PARTITIONS)), **fields):
            store.tensors.write_state(self.state(round))
            updates = {partition: self.update(round, partition) for partition in present}
            for shard in ((0, 1, 2), (3, 4)):
                store.tensors.write_updates(round, {p: updates[p] for p in shard if p in updates})
            records = {p: UpdateRecord(update_digest(update), update.weight) for p, update in updates.items()}
            return replace(store.describe(self.state(round), "writer", 0), updates=records, **fields)

        def trained(self, rounds=3, carry_from=lambda round: {}, **fields) -> RoundStore:
            store = self.create(rounds=rounds + 1)
            for round in range(1, rounds + 1):
                store.commit(self.write(store, round, carry_from=carry_from(round), **fields))
            store.show()
            return store

    return Many(tiny.folder)


def keys(store: RoundStore, round: int) -> list[str]:
    return [key for key in store.place.sizes() if key.startswith(("updates", "carry")) and f"/c/{round}/" in key]


def test_updates_that_are_carried_stay_and_the_others_of_their_file_go(many, same) -> None:
    store = many.trained(carry_from=lambda round: {1: 1, 4: round})
    before, whole = store.place.sizes(), {key: (store.path / key).read_bytes() for key in keys(store, 1)}
    goes = prune_run(store, Keep.of("states"), dry=True)
    assert store.place.sizes() == before
    assert prune_run(store, Keep.of("states")) == goes
    after = store.place.sizes()
    counted = [key for key in before if "/c/" in key and key.startswith(("updates", "carry"))]
    assert goes.bytes == sum(before[key] - after.get(key, 0) for key in counted)
    assert keys(store, 2) == []
    assert {key.split("/c/")[1] for key in keys(store, 1) + keys(store, 3)} == {"1/0/0", "3/1/0"}
    assert same(store.tensors.read_update(1, 1).carry, many.update(1, 1).carry)
    with pytest.raises(RoundPruned):
        store.tensors.read_update(1, 0)
    assert verify(store.path).sound and verify(store.path).notes == ()
    assert prune_run(store, Keep.of("states")).bytes == 0
    for key in keys(store, 1):  # a pruning that was killed before it wrote this file anew
        (store.path / key).write_bytes(whole[key])
    assert verify(store.path).sound
    prune_run(store, Keep.of("states"))
    again = store.place.sizes()
    assert all(again.get(key) == after.get(key) for key in counted)
    assert recover(store) == (3, [])


def test_a_round_of_which_some_partitions_take_part_is_whole(many, same) -> None:
    store = many.trained(present=(1, 3))
    assert verify(store.path).sound
    assert same(store.tensors.read_update(2, 3).carry, many.update(2, 3).carry)
    assert Run(store.path).round(2).updates["scale"].values.shape == (2,)
    shown = Run(store.path).tree["updates/scale"].values
    assert np.isnan(shown[2]).tolist() == [True, False, True, False, True]
    copy_run(store, LocalPlace(store.path.parent / "copy.zarr"))
    assert verify(store.path.parent / "copy.zarr").sound


MANY = 10_000


@pytest.mark.parametrize(
    ("partitions", "size", "processes", "cohort", "shard"),
    [
        *((32, 1, 1, 0, 1), (33, 1, 1, 0, 3), (100, 1, 1, 0, 5), (997, 1, 1, 0, 32), (1000, 1, 1, 0, 50)),
        *((MANY, 1, 2, 0, 625), (1000, 1, 8, 0, 25), (1000, 1, 200, 0, 1), (10**5, 1, 1, 0, 2048)),
        *((1000, 1 << 20, 1, 0, 16), (1000, 1 << 24, 1, 0, 1), (MANY, 1, 1, 32, 625), (MANY, 1, 1, 33, 1250)),
        *((MANY, 1, 2, 33, 625), (MANY, 1, 8, 33, 250), (MANY, 1 << 22, 1, 50, 800)),
        *((MANY, 1, 1, 9999, 1250), (MANY, 1, 1, MANY, 625)),
    ],
)
def test_so_many_partitions_share_a_file(partitions, size, processes, cohort, shard) -> None:
    """At most 32 files, or 8 for each process, but none of more than 64 MiB or 2048 partitions; by hand.

    Of 32 to 63 for 1000 partitions, 50 makes 20 files, which are halved twice; 997 is prime, and 32 the least. A
    cohort's updates are in 8 files for each process: of 10,000 partitions 64 files for 8 processes have 157, and
    250 makes 40, halved three times. Of 50 updates of 16 MiB four are in a file of 800 partitions, 64 MiB. All
    partitions are no cohort.
    """
    layout = Layout((TensorSpec("w", "float32", (size,)),), (), (), ())
    schema = Schema(layout, partitions).sharded(processes, cohort)
    assert schema.shard == shard
    assert Schema.from_json(schema.to_json()) == schema
    assert ("shard" in schema.to_json()) == (shard > 1)


@pytest.mark.parametrize("shard", [1 << 20, 2**40, 0, -1, 1.5, "2", None, True])
def test_a_store_whose_files_would_be_too_large_is_none(many, shard) -> None:
    store = many.trained(rounds=1)
    path = store.path / "zarr.json"
    path.write_text(path.read_text().replace('"shard": 3', f'"shard": {shard!r}'.replace("'", '"')))
    with pytest.raises(NotARun):
        RoundStore(store.path)
    if shard == 1 << 20:  # such a store is not made either
        schema = replace(many.schema, shard=shard)
        with pytest.raises(UsageError, match="1048576 partitions share a file, which would be too large"):
            RoundStore.create(many.folder / "large.zarr", schema, 1, {}, many.state(0))
