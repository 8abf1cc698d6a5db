"""Names, shapes and chunks of the hierarchy."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.hierarchy.schema import ArraySpec, Schema
from roundweave.storage.values.state import Layout
from roundweave.storage.values.tensors import TensorSpec

NAMES = st.text("abc.:_0", min_size=1, max_size=6)
DTYPES, SHAPES = st.sampled_from(["float32", "bfloat16", "int64", "bool"]), st.lists(st.integers(0, 9), max_size=3)
SPECS = st.lists(st.builds(TensorSpec, NAMES, DTYPES, SHAPES.map(tuple)), max_size=3).map(tuple)
ALIASES = st.dictionaries(NAMES, NAMES, max_size=3).map(lambda aliases: tuple(aliases.items()))
SLOTS = st.lists(NAMES, max_size=2).map(tuple)


@settings(max_examples=40)
@given(st.builds(Schema, st.builds(Layout, SPECS, SPECS, SPECS, ALIASES), st.just(3), SLOTS, SLOTS, SLOTS, SPECS))
def test_a_schema_comes_back_from_json(schema) -> None:
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_a_tensor_has_a_chunk_a_round_and_axes_named_after_it(tiny) -> None:
    spec = tiny.schema.arrays(6)["memory/velocity/fc.weight"]
    assert (spec.shape, spec.chunks) == ((6, 3, 2), (1, 3, 2))
    assert spec.dims == ("round", "fc.weight.0", "fc.weight.1")


def test_vectors_have_a_chunk_for_each_round_and_partition(tiny) -> None:
    vectors = tiny.schema.vectors(6)
    groups = ["updates", "updates/extras/control", "carry/variate"]
    params = {f"{group}/{dtype}": size for group in groups for dtype, size in (("float32", 7), ("bfloat16", 4))}
    buffers = {"updates/buffers/float32": 2, "updates/buffers/int64": 1, "updates/buffers/bool": 3}
    wanted = {path: (6, 2, size) for path, size in (params | buffers).items()}
    assert {path: spec.shape for path, spec in vectors.items()} == wanted
    assert all(spec.chunks == (1, 1, spec.shape[2]) for spec in vectors.values())


STORED = [("float32", "float32", "NaN"), ("bfloat16", "uint16", 0), ("int64", "int64", 0), ("bool", "bool", False)]


@pytest.mark.parametrize(("dtype", "stored", "fill"), STORED)
def test_what_is_stored_of_a_dtype(dtype, stored, fill) -> None:
    spec = ArraySpec("a", dtype, (1,), (1,), ("x",))
    assert (spec.stored, spec.fill) == (stored, fill)
    assert spec.metadata()["attributes"] == {"logical_dtype": dtype}
