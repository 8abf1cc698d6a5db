"""Packing named tensors into vectors, and records on their way through pickle and Dask."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from distributed.protocol import deserialize, serialize
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave import Examples, Layout, State, Update
from roundweave.storage.errors import ShapeMismatch
from roundweave.storage.values import tensors as values
from roundweave.storage.values.digests import tensor_digest
from roundweave.storage.values.tensors import (
    TensorSpec,
    differences,
    from_numpy,
    pack,
    same_bits,
    specs_of,
    to_numpy,
    views,
)
from tests.storage.conftest import plain, thorough

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
NAMES = st.text("abcdefgh.", min_size=1, max_size=6)


@st.composite
def named_tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    tensors = {}
    for name in draw(st.lists(NAMES, max_size=6, unique=True)):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        dtype = getattr(torch, draw(st.sampled_from(DTYPES)))
        seed = draw(st.integers(0, 1000))
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 50
        tensors[name] = (numbers > 0) if dtype == torch.bool else numbers.abs().to(dtype)
    return tensors


@given(named_tensors())
@settings(max_examples=40)
def test_packed_tensors_come_back_as_they_were(tensors: dict[str, torch.Tensor]) -> None:
    specs = specs_of(tensors.items())
    vectors = pack(specs, tensors)
    assert all(vector.ndim == 1 and vector.is_contiguous() for vector in vectors.values())
    assert {name: vector.numel() for name, vector in vectors.items()} == values.vector_sizes(specs)
    found = views(specs, vectors)
    assert list(found) == list(tensors)
    assert plain(found) == plain(tensors)


def test_tensors_of_one_dtype_lie_one_after_the_other_in_the_order_of_the_specs() -> None:
    tensors = {"b": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "n": torch.tensor(7), "a": torch.tensor(5.0)}
    tensors |= {"none": torch.zeros(0), "t": torch.tensor([[8.0, 9.0], [10.0, 11.0]]).T}
    vectors = pack(specs_of(tensors.items()), tensors)
    assert vectors["float32"].tolist() == [1, 2, 3, 4, 5, 8, 10, 9, 11]
    assert vectors["int64"].tolist() == [7]


def test_views_share_the_memory_of_their_vector() -> None:
    specs = (TensorSpec("a", "float32", (2, 2)), TensorSpec("b", "float32", ()))
    vectors = {"float32": torch.zeros(5)}
    named = views(specs, vectors)
    named["a"][1, 0] = 3.0
    vectors["float32"][4] = 4.0
    assert vectors["float32"].tolist() == [0, 0, 3, 0, 4]
    assert named["b"].item() == 4.0


def test_vectors_that_do_not_fit_the_specs_are_refused() -> None:
    for sizes in ({}, {"float32": 5}, {"float32": 7}, {"float64": 6}, {"float32": 6, "int64": 1}):
        vectors = {dtype: torch.zeros(size, dtype=getattr(torch, dtype)) for dtype, size in sizes.items()}
        with pytest.raises(ShapeMismatch, match=r"expected vectors of \{'float32': 6\} elements"):
            views((TensorSpec("a", "float32", (3, 2)),), vectors)


def test_bfloat16_travels_as_its_bits() -> None:
    tensor = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    array = to_numpy(tensor)
    assert array.dtype == np.uint16
    assert array.tolist() == [0x3F80, 0xC000]
    assert same_bits(from_numpy(array, "bfloat16"), tensor)


@given(named_tensors())
@settings(max_examples=40)
def test_tensors_come_back_from_numpy_bit_by_bit(tensors: dict[str, torch.Tensor]) -> None:
    for tensor in tensors.values():
        assert same_bits(from_numpy(to_numpy(tensor), str(tensor.dtype).removeprefix("torch.")), tensor)


def through_pickle(record: object) -> object:
    return pickle.loads(pickle.dumps(record, protocol=5))


def through_dask(record: object) -> object:
    header, frames = serialize(record, serializers=("dask", "pickle"))
    return deserialize(header, [bytes(frame) for frame in frames])


@pytest.mark.parametrize("way", [through_pickle, through_dask])
@settings(max_examples=30)
@given(tensors=named_tensors())
def test_records_arrive_as_they_left_and_can_be_written_to(way, same, tensors: dict[str, torch.Tensor]) -> None:
    vectors = pack(specs_of(tensors.items()), tensors)
    state = State(vectors, vectors, {}, {"velocity": vectors}, round=3)
    update = Update(vectors, vectors, {"control": vectors}, 7, {"train_loss": 0.5}, {"variate": vectors})
    assert same(way(state), state)
    assert same(way(update), update)
    for vector in way(state).params.values():
        vector.zero_()


def test_a_state_names_its_tensors_by_their_path_in_the_store() -> None:
    w, n, f = TensorSpec("w", "float32", (2,)), TensorSpec("n", "int64", ()), TensorSpec("f", "float32", ())
    layout = Layout(params=(w,), buffers=(n,), frozen=(f,), aliases=(("v", "w"),))
    params, frozen, velocity = ({"float32": torch.tensor(each)} for each in ([1.0, 2.0], [4.0], [5.0, 6.0]))
    state = State(params, {"int64": torch.tensor([3])}, frozen, {"velocity": velocity})
    named = {path: tensor.tolist() for path, tensor in state.named(layout).items()}
    assert named == {"params/w": [1, 2], "buffers/n": 3, "frozen/f": 4, "memory/velocity/w": [5, 6]}


class Versioned(torch.nn.Linear):
    """Refuses a state that does not say of which version it is."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *others):
        assert local_metadata.get("version") == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)


def test_tensors_of_a_file_are_loaded_as_of_the_networks_versions():
    network, other = Versioned(3, 2), Versioned(3, 2)
    values.load_named(network, dict(other.state_dict()))
    assert torch.equal(network.weight, other.weight)


@pytest.mark.parametrize("offset", range(0, 16, 3))
def test_products_of_a_record_have_the_same_bits_wherever_its_bytes_were_received(offset: int) -> None:
    """A process receives buffers at any address, and torch's products depend on that."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 12, generator=generator)
    weight = torch.randn(8, 12, generator=generator)
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(Examples(inputs, torch.zeros(60)), protocol=5, buffer_callback=buffers.append)
    received = []
    for buffer in buffers:
        memory = np.zeros(buffer.raw().nbytes + 32, np.uint8)
        start = -memory.ctypes.data % 16 + offset
        memory[start : start + buffer.raw().nbytes] = np.frombuffer(buffer.raw(), np.uint8)
        received.append(memory[start : start + buffer.raw().nbytes])
    found = pickle.loads(body, buffers=received).inputs
    assert torch.equal(found, inputs)
    assert found.data_ptr() % 16 == 0
    assert torch.equal(torch.nn.functional.linear(found, weight), torch.nn.functional.linear(inputs, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, *thorough(5, 64), 1001])
def test_bits_are_the_same_unless_one_is_another(dtype: str, size: int) -> None:
    one = torch.arange(2 * size).remainder(7).to(getattr(torch, dtype))
    other = one.clone()
    assert same_bits(one[size:], other[size:])
    for place in {0, size // 2, size - 1}:
        changed = other.clone()
        changed[place] = not changed[place] if dtype == "bool" else changed[place] + 1
        assert not same_bits(one[:size], changed[:size])
        assert same_bits(one[size:], changed[size:])  # what lies beside them is not looked at
    assert same_bits(one[::2], other[::2].clone())
    assert not same_bits(one, other.view(2, size))
    assert same_bits(one[:0], other[:0])


def test_numbers_that_are_equal_may_have_other_bits_and_others_the_same() -> None:
    zero, nan = torch.zeros(3), torch.full((3,), torch.nan)
    assert torch.equal(zero, -zero)
    assert not same_bits(zero, -zero)
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, zero.view(torch.int32))


NAN, INF, HALF = math.nan, math.inf, torch.bfloat16
FLOATS = st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=3, max_size=3)


@pytest.mark.parametrize(
    ("some", "others", "largest"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.5, 2.0], 1.0),
        ([NAN, 1.0, 1.0], [2.0, 1.0, 1.0], INF),
        ([INF, 1.0, 1.0], [-INF, 1.0, 1.0], INF),
        ([0.0, 1.0, 1.0], [-0.0, 1.0, 1.0], 0.0),
        ([3, 9], [5, 9], 2.0),
        ([True, False], [True, True], 1.0),
        (torch.tensor([1.0], dtype=HALF), torch.tensor([0.5], dtype=HALF), 0.5),
        ([3 + 4j], [0j], 5.0),
        ([1.0], torch.tensor([1.0], dtype=torch.float64), None),
        ([1.0], [1.0, 1.0], None),
    ],
)
def test_how_far_tensors_are_apart(some, others, largest: float | None) -> None:
    one, other = map(torch.as_tensor, (some, others))
    assert list(differences({"a": one}, {"a": other})) == [("a", largest)]


def test_differences_come_in_the_order_of_the_first_then_of_the_second() -> None:
    one, two = torch.ones(2), torch.full((2,), 2.0)
    found = differences({"c": one, "b": one, "a": one, "n": torch.tensor([])}, {"d": one, "a": two, "c": two})
    assert list(found) == [("c", 1.0), ("b", None), ("a", 1.0), ("n", None), ("d", None)]
    same = {"nan": torch.tensor([NAN, INF, -INF]), "none": torch.tensor([])}
    assert not [*differences(same, {name: tensor.clone() for name, tensor in reversed(same.items())})]


@given(FLOATS, FLOATS)
def test_tensors_differ_where_their_digests_do(some: list[float], others: list[float]) -> None:
    now, then = torch.tensor(some), torch.tensor(others)
    found = [*differences({"a": now}, {"a": then})]
    assert bool(found) == (tensor_digest("a", now) != tensor_digest("a", then))
    assert found == [*differences({"a": then}, {"a": now})]
    assert all(largest is not None and largest >= 0 for _, largest in found)
