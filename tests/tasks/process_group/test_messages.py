"""Values that pass between ranks are the same on the other side, in memory of their own."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave.storage.values.state import Update
from roundweave.tasks.process_group.messages import Message, read_message

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool")


@given(
    st.dictionaries(st.sampled_from(DTYPES), st.integers(0, 300)),
    st.integers(1, 1 << 40),
    st.integers(0, 100),
    st.binary(max_size=50),
)
def test_a_message_brings_the_value_whatever_memory_follows_it(sizes, weight, room, more) -> None:
    direction = {name: torch.randn(size).to(getattr(torch, name)) for name, size in sizes.items()}
    message = Message.of((Update(direction, weight=weight), more))
    memory = bytearray(b"\xff" * (message.size + room))
    message.write(memoryview(memory))
    update, also = read_message(memoryview(memory))
    memory[:] = bytes(len(memory))
    assert (update.weight, also) == (weight, more)
    assert update.direction.keys() == direction.keys()
    assert all(torch.equal(vector, direction[name]) for name, vector in update.direction.items())


def test_a_class_that_only_its_module_has_is_sent_by_value() -> None:
    """As those of a notebook's, which other processes do not have."""

    class Own:
        number = 3

    message = Message.of(Own())
    memory = memoryview(bytearray(message.size))
    message.write(memory)
    assert read_message(memory).number == 3
