"""Values as bytes that pass between ranks. The memory of tensors is copied once to send and once to receive."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np


@dataclass(frozen=True)
class Message:
    """A value to be sent: its pickle, and then the memory of each of its tensors, (byte,) each.

    In bytes it is the number of pieces, the size of each (8 bytes each, little-endian), and the pieces.
    """

    pieces: tuple[memoryview, ...]

    @classmethod
    def of(cls, value: Any) -> Message:
        """The message of a value, whose tensors must be in records (see `roundweave.storage.values.tensors`)."""
        try:
            return cls._of(value, pickle.dumps)
        except (pickle.PicklingError, AttributeError):  # a class defined in a notebook
            return cls._of(value, cloudpickle.dumps)

    @classmethod
    def _of(cls, value: Any, dumps: Callable[..., bytes]) -> Message:
        buffers: list[pickle.PickleBuffer] = []
        body = dumps(value, protocol=5, buffer_callback=buffers.append)
        return cls((memoryview(body), *(buffer.raw() for buffer in buffers)))

    @property
    def size(self) -> int:
        """How many bytes `write` writes."""
        return 8 * (1 + len(self.pieces)) + sum(piece.nbytes for piece in self.pieces)

    @property
    def parts(self) -> tuple[memoryview, ...]:
        """All that `write` writes, (byte,) each: the sizes in one part, and the pieces."""
        head = np.array([len(self.pieces), *(piece.nbytes for piece in self.pieces)], dtype="<i8")
        return head.data.cast("B"), *self.pieces

    def write(self, to: memoryview) -> None:
        """Write the message to the beginning of a memory, (byte,)."""
        at = 0
        for piece in self.parts:
            to[at : at + piece.nbytes] = piece
            at += piece.nbytes


def read_message(memory: memoryview) -> Any:
    """Read the value of the message at the beginning of a memory, (byte,), of which the value keeps a copy."""
    body, *buffers = _pieces(memory)
    return pickle.loads(body, buffers=[bytearray(buffer) for buffer in buffers])


def _pieces(memory: memoryview) -> Iterator[memoryview]:
    count = int(np.frombuffer(memory[:8], "<i8")[0])
    at = 8 * (1 + count)
    for size in np.frombuffer(memory[8:at], "<i8"):
        yield memory[at : at + int(size)]
        at += int(size)
