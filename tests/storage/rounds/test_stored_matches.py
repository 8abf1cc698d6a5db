"""How a reduce matched units, in the store: it comes back, damage is found, and xarray reads it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
import zarr

from roundweave.storage.errors import NotARun, RoundMissing, TensorMissing
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.digests import match_digest, update_digest
from roundweave.storage.values.state import Match
from roundweave.storage.values.tensors import TensorSpec
from tests.storage.conftest import lengthened

RECORD = {"config": {"algorithm": {"name": "matched"}}, "created": 1.0}
HARD = (
    TensorSpec("fc1", "int64", (3,)),
    TensorSpec("heads", "int64", (2,)),
    TensorSpec("inner:2", "int64", (2, 4)),
)
"""Units, and units that depend on the head they are in."""
SOFT = (TensorSpec("fc1", "float32", (3, 3)), TensorSpec("heads", "int64", (2,)))
"""A mixture beside a permutation."""


def match(specs: tuple[TensorSpec, ...], seed: int) -> Match:
    """A permutation or mixture and similarities drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    permutation, similarity = {}, {}
    for spec in specs:
        drawn = torch.rand(spec.shape, generator=generator)
        soft = spec.dtype == "float32"
        permutation[spec.name] = drawn / drawn.sum(1, keepdim=True) if soft else drawn.argsort(-1)
        similarity[spec.name] = torch.rand(spec.shape[:1] if soft else spec.shape, generator=generator)
    return Match(permutation, similarity)


def matched(tiny, specs: tuple[TensorSpec, ...], rounds: int = 2, without: tuple[int, ...] = ()) -> RoundStore:
    """A run in which each round matched both partitions, but for some partitions that it did not match."""
    schema = replace(tiny.schema, matches=specs)
    store = RoundStore.create(tiny.folder / "matched.zarr", schema, rounds, RECORD, tiny.state(0))
    for round in range(1, rounds + 1):
        commit, records = tiny.write(store, round), {}
        for partition in range(2):
            digest = None
            if partition not in without:
                found = match(specs, 10 * round + partition)
                store.tensors.write_matches(round, {partition: found})
                digest = match_digest(found)
            records[partition] = UpdateRecord(update_digest(tiny.update(round, partition)), 1, match=digest)
        store.commit(replace(commit, updates=records))
    return store


def alike(one: Match, other: Match, same) -> bool:
    return same(dict(one.permutation), dict(other.permutation)) and same(
        dict(one.similarity), dict(other.similarity)
    )


@pytest.mark.parametrize("specs", [HARD, SOFT], ids=["hard", "soft"])
def test_matches_come_back(tiny, same, specs) -> None:
    store = matched(tiny, specs)
    for opened in (store, RoundStore(store.path)):
        for round in (1, 2):
            for partition in (0, 1):
                found = opened.tensors.read_match(round, partition)
                assert alike(found, match(specs, 10 * round + partition), same)
    assert alike(StoredRun(store.path).round(2).match(1), match(specs, 21), same)


def test_a_mixture_has_a_similarity_a_unit_and_a_permutation_one_in_each_place(tiny) -> None:
    arrays = replace(tiny.schema, matches=(*HARD, *SOFT[:1])).matching(5)
    assert arrays["permutations/inner:2"].shape == arrays["similarities/inner:2"].shape == (5, 2, 2, 4)
    assert arrays["similarities/inner:2"].chunks == (1, 1, 2, 4)
    soft = replace(tiny.schema, matches=SOFT).matching(5)
    assert (soft["permutations/fc1"].shape, soft["permutations/fc1"].dtype) == ((5, 2, 3, 3), "float32")
    assert (soft["similarities/fc1"].shape, soft["similarities/fc1"].dtype) == ((5, 2, 3), "float32")
    assert set(tiny.schema.matching(5)) == set()


def test_what_is_not_matched_is_missing(tiny) -> None:
    store = matched(tiny, HARD, rounds=1, without=(0,))
    for round, partition in ((1, 0), (0, 0), (1, 7)):
        with pytest.raises(RoundMissing, match=rf"round {round} of .* matched no units of partition {partition}"):
            store.tensors.read_match(round, partition)
    with pytest.raises(RoundMissing, match="no committed round 2"):
        store.tensors.read_match(2, 0)


# Damage.


# What zarr, xarray and a notebook see; a warning would be an error.


@pytest.mark.parametrize("specs", [HARD, SOFT], ids=["hard", "soft"])
def test_plain_zarr_and_xarray_open_the_arrays(tiny, specs) -> None:
    store = matched(tiny, specs)
    group = zarr.open_group(store.path, mode="r", zarr_format=3, use_consolidated=False)
    with xr.open_datatree(store.path, engine="zarr", consolidated=False) as tree:
        for spec in specs:
            for kind in ("permutation", "similarity"):
                path = {"permutation": "permutations", "similarity": "similarities"}[kind] + f"/{spec.name}"
                want = getattr(match(specs, 21), kind)[spec.name].numpy()
                np.testing.assert_array_equal(group[path][2, 1], want)
                assert group[path].metadata.dimension_names[:2] == ("round", "partition")
                np.testing.assert_array_equal(tree[path].values[2, 1], want)
                assert tree[path].dims[:2] == ("round", "partition")


def test_permutations_and_similarities_of_a_round(tiny) -> None:
    round = StoredRun(matched(tiny, HARD).path).round(2)
    assert list(round.permutations) == list(round.similarities) == ["fc1", "heads", "inner:2"]
    assert len(round.permutations) == 3
    found = round.permutations["fc1"]
    assert (found.dtype, found.dims, found.name) == (np.dtype("int64"), ("partition", "fc1.0"), "fc1")
    assert found["partition"].values.tolist() == [0, 1]
    assert found.sel(partition=1).values.tolist() == match(HARD, 21).permutation["fc1"].tolist()
    inner = round.similarities["inner:2"]
    assert (inner.dtype, inner.dims) == (np.dtype("float32"), ("partition", "inner:2.0", "inner:2.1"))
    assert inner.values[0].tolist() == match(HARD, 20).similarity["inner:2"].tolist()


def test_a_mixture_of_a_round_is_a_matrix(tiny) -> None:
    round = StoredRun(matched(tiny, SOFT).path).round(1)
    found = round.permutations["fc1"]
    assert (found.dtype, found.shape) == (np.dtype("float32"), (2, 3, 3))
    assert found.dims == ("partition", "fc1.0", "fc1.1")
    np.testing.assert_allclose(found.sum("fc1.1"), 1, rtol=1e-6)
    assert round.similarities["fc1"].dims == ("partition", "fc1.0")
    assert round.permutations["heads"].dtype == np.dtype("int64")


def test_partitions_that_were_not_matched_are_left_out(tiny) -> None:
    round = StoredRun(matched(tiny, HARD, rounds=1, without=(0,)).path).round(1)
    assert round.permutations["fc1"]["partition"].values.tolist() == [1]


def test_a_group_that_is_not_there_is_named_with_those_that_are(tiny) -> None:
    run = StoredRun(matched(tiny, HARD, rounds=1, without=(0, 1)).path)
    with pytest.raises(TensorMissing, match=r"no group of units 'fc9' is matched; there are fc1, heads, inner:2"):
        run.round(1).permutations["fc9"]
    with pytest.raises(RoundMissing, match="round 1 matched no units"):
        run.round(1).similarities["fc1"]
    plain = StoredRun(tiny.train(tiny.create(), 1).path).round(1)
    assert list(plain.permutations) == []
    with pytest.raises(TensorMissing, match="there are none"):
        plain.permutations["fc1"]


def test_extending_makes_room_for_matches(tiny, same) -> None:
    longer = lengthened(matched(tiny, HARD, rounds=1), 3)
    assert longer.tensors.arrays["permutations/inner:2"].shape == (4, 2, 2, 4)
    assert alike(longer.tensors.read_match(1, 0), match(HARD, 10), same)
    found = match(HARD, 99)
    longer.tensors.write_matches(3, {1: found})
    with pytest.raises(RoundMissing):
        longer.tensors.read_match(3, 1)


def test_a_schema_whose_matches_are_nonsense_is_no_run(tiny) -> None:
    store = matched(tiny, HARD, rounds=1)
    path = store.path / "zarr.json"
    value = json.loads(path.read_text())
    value["attributes"]["schema"]["matches"] = [["fc1"]]
    path.write_text(json.dumps(value))
    with pytest.raises(NotARun):
        RoundStore(store.path)
