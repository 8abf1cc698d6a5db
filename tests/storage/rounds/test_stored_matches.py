"""How a reduce matched units, in the store: it comes back, damage is found, and xarray reads it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from roundweave.storage.errors import RoundMissing, TensorMissing
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.digests import match_digest, update_digest
from roundweave.storage.values.state import Match
from roundweave.storage.values.tensors import TensorSpec

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


def matched(tiny, specs: tuple[TensorSpec, ...], rounds: int = 2, without: tuple[int, ...] = (), name="hard"):
    """A run in which each round matched both partitions, but for some partitions that it did not match."""
    schema = replace(tiny.schema, matches=specs)
    store = RoundStore.create(tiny.folder / f"{name}.zarr", schema, rounds, RECORD, tiny.state(0))
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


def test_permutations_and_similarities_of_a_round(tiny) -> None:
    hard = StoredRun(matched(tiny, HARD, without=(0,)).path).round(2)
    assert list(hard.permutations) == list(hard.similarities) == ["fc1", "heads", "inner:2"]
    assert len(hard.permutations) == 3
    found = hard.permutations["fc1"]
    assert (found.dtype, found.dims, found.name) == (np.dtype("int64"), ("partition", "fc1.0"), "fc1")
    assert found["partition"].values.tolist() == [1]
    assert found.sel(partition=1).values.tolist() == match(HARD, 21).permutation["fc1"].tolist()
    inner = hard.similarities["inner:2"]
    assert (inner.dtype, inner.dims) == (np.dtype("float32"), ("partition", "inner:2.0", "inner:2.1"))
    assert inner.values[0].tolist() == match(HARD, 21).similarity["inner:2"].tolist()
    soft = StoredRun(matched(tiny, SOFT, name="soft").path).round(1)
    assert (soft.permutations["fc1"].dims, soft.similarities["fc1"].dims) == (
        ("partition", "fc1.0", "fc1.1"),
        ("partition", "fc1.0"),
    )
    assert soft.permutations["fc1"].values[0].tolist() == match(SOFT, 10).permutation["fc1"].tolist()


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
