"""How a reduce matched units, in the store: what was matched is shown by group, and what was not is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roundweave.storage.errors import RoundMissing, TensorMissing
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.tensors import TensorSpec


@pytest.fixture
def run(every) -> StoredRun:
    """Two rounds with units of a permutation, `fc`, and a mixture, `mix`; partition 0 is refused."""
    store = every.create()
    for round in (1, 2):
        store.commit(every.write(store, round, refused=(0,)))
    return StoredRun(store.path)


def test_a_mixture_has_a_similarity_a_unit_and_a_permutation_one_in_each_place(tiny) -> None:
    """Units that depend on the head they are in have two axes."""
    specs = (TensorSpec("fc1", "float32", (3, 3)), TensorSpec("inner:2", "int64", (2, 4)))
    arrays = replace(tiny.schema, matches=specs).matching(5)
    assert arrays["permutations/inner:2"].shape == arrays["similarities/inner:2"].shape == (5, 2, 2, 4)
    assert arrays["similarities/inner:2"].chunks == (1, 1, 2, 4)
    assert (arrays["permutations/fc1"].shape, arrays["permutations/fc1"].dtype) == ((5, 2, 3, 3), "float32")
    assert (arrays["similarities/fc1"].shape, arrays["similarities/fc1"].dtype) == ((5, 2, 3), "float32")
    assert set(tiny.schema.matching(5)) == set()


def test_permutations_and_similarities_of_a_round(every, run) -> None:
    found, wanted = run.round(2), every.match(2, 1)
    assert list(found.permutations) == list(found.similarities) == ["fc", "mix"]
    for kind, dims, dtype in (("fc", ("fc.0",), "int64"), ("mix", ("mix.0", "mix.1"), "float32")):
        array = found.permutations[kind]
        assert (array.dtype, array.dims, array.name) == (np.dtype(dtype), ("partition", *dims), kind)
        assert array["partition"].values.tolist() == [1]
        assert array.sel(partition=1).values.tolist() == wanted.permutation[kind].tolist()
        near = found.similarities[kind]
        assert (near.dtype, near.dims) == (np.dtype("float32"), ("partition", f"{kind}.0"))
        assert near.values[0].tolist() == wanted.similarity[kind].tolist()


def test_what_is_not_matched_or_no_group_is_told(tiny, run) -> None:
    read = run._store.tensors.read_match
    for round, partition in ((1, 0), (0, 0), (1, 7)):
        with pytest.raises(RoundMissing, match=rf"round {round} of .* matched no units of partition {partition}"):
            read(round, partition)
    with pytest.raises(RoundMissing, match="no committed round 3"):
        read(3, 0)
    with pytest.raises(TensorMissing, match=r"no group of units 'fc9' is matched; there are fc, mix"):
        run.round(1).permutations["fc9"]
    with pytest.raises(RoundMissing, match="round 0 matched no units"):
        run.round(0).similarities["fc"]
    plain = StoredRun(tiny.train(tiny.create(), 1).path).round(1)
    assert list(plain.permutations) == []
    with pytest.raises(TensorMissing, match="there are none"):
        plain.permutations["fc"]
