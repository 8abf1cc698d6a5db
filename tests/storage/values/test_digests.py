"""Digests are what a line of BLAKE3 would give, and nothing else changes them."""

from __future__ import annotations

import json
import struct

import numpy as np
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.values.digests import (
    differing,
    state_digest,
    tensor_digest,
    tensor_digests,
    vectors_digest,
)
from roundweave.storage.values.hashing import bytes_digest, json_digest, text_digest


def hashed(text: bytes) -> str:
    return blake3(text).hexdigest()


def test_digests_are_those_of_the_published_test_vectors() -> None:
    assert bytes_digest(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert bytes_digest(b"\0") == "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"


def test_a_tensor_digest_is_blake3_of_name_dtype_shape_and_little_endian_bytes() -> None:
    numbers = [[1.5, -2.0, 3.25], [0.0, 5.0, 6.0]]
    wanted = hashed(b'["fc.weight", "float32", [2, 3]]' + struct.pack("<6f", *numbers[0], *numbers[1]))
    assert tensor_digest("fc.weight", torch.tensor(numbers)) == wanted


def test_the_digest_of_integers_bools_bfloat16_scalars_and_nothing() -> None:
    assert tensor_digest("n", torch.tensor(-2)) == hashed(b'["n", "int64", []]' + struct.pack("<q", -2))
    assert tensor_digest("m", torch.tensor([True, False])) == hashed(b'["m", "bool", [2]]\x01\x00')
    half = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    assert tensor_digest("h", half) == hashed(b'["h", "bfloat16", [2]]\x80\x3f\x00\xc0')
    assert tensor_digest("e", torch.zeros(0, 3)) == hashed(b'["e", "float32", [0, 3]]')


def test_a_state_digest_covers_the_sorted_tensors_and_the_round() -> None:
    digests = tensor_digests({"b": torch.tensor([1.0]), "a": torch.tensor([2])})
    assert list(digests) == ["a", "b"]
    wanted = hashed(json.dumps([7, [["a", digests["a"]], ["b", digests["b"]]]]).encode())
    assert state_digest(digests, 7) == wanted
    assert state_digest(dict(reversed(digests.items())), 7) == wanted
    assert state_digest(digests, 8) != wanted


def test_a_tensor_digest_changes_with_name_dtype_and_shape() -> None:
    tensor = torch.zeros(2, 3)
    others = [tensor, tensor.T, tensor.reshape(6), tensor.int(), tensor.double(), -tensor]
    assert len({tensor_digest("b", tensor), *(tensor_digest("a", each) for each in others)}) == 7


@given(st.integers(0, 5), st.integers(0, 31))
def test_one_bit_changes_the_digest(element: int, bit: int) -> None:
    tensor = torch.arange(6.0)
    bits = tensor.numpy().copy().view(np.uint32)
    bits[element] ^= np.uint32(1 << bit)
    assert tensor_digest("a", torch.from_numpy(bits.view(np.float32))) != tensor_digest("a", tensor)


DTYPES = st.sampled_from([torch.float32, torch.int64, torch.bfloat16])


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), DTYPES, st.data())
@settings(max_examples=50)
def test_the_layout_in_memory_does_not_matter(shape: list[int], dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    order = data.draw(st.permutations(range(len(shape))))
    back = [order.index(axis) for axis in range(len(shape))]
    moved = tensor.permute(order).contiguous().permute(back)
    spread = torch.zeros(*shape, 2, dtype=dtype)
    spread[..., 1] = tensor
    wanted = tensor_digest("a", tensor)
    assert tensor_digest("a", moved) == wanted
    assert tensor_digest("a", spread[..., 1]) == wanted


def test_the_digest_of_vectors_tells_their_groups_apart() -> None:
    one, two = {"float32": torch.tensor([1.0])}, {"float32": torch.tensor([2.0])}
    assert vectors_digest({"updates": one, "carry": two}) == vectors_digest({"carry": two, "updates": one})
    assert vectors_digest({"updates": one, "carry": two}) != vectors_digest({"updates": two, "carry": one})
    wanted = json.dumps([tensor_digest("updates/float32", one["float32"])])
    assert vectors_digest({"updates": one}) == hashed(wanted.encode())


def test_texts_and_json_values() -> None:
    assert text_digest("über") == hashed("über".encode())
    assert json_digest({"b": 1, "a": [2, None]}) == hashed(b'{"a": [2, null], "b": 1}')


def test_what_differs_is_named_in_the_order_of_the_first_then_of_the_second() -> None:
    assert list(differing({"b": 1, "a": 2, "c": 3}, {"d": 4, "c": 3, "b": 0})) == ["b", "a", "d"]
