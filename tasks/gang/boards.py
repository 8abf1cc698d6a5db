"""Where ranks read each other's messages: memory that they share, or what is sent over the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

import torch

from tasks.gang.collectives import numbers_of_all, objects_of_all, tensors_of_all
from tasks.gang.messages import Message, read_message
from tasks.gang.shared import OtherMemory, OwnMemory


class Board(Protocol):
    """Takes a message of each rank at a time."""

    def exchange(self, message: Message) -> Iterator[Any]:
        """The values of all ranks, in their order; of this one None."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class Shared:
    """In memory that all ranks of one machine share; a message is there until the next but one is told."""

    def __init__(self, own: OwnMemory, others: list[OtherMemory | None]) -> None:
        self._own = own
        self._others = others

    @classmethod
    def among(cls, rank: int, ranks: int) -> Shared | None:
        """One of all ranks, None where any of them does not reach the memory of another."""
        own, others = None, list[OtherMemory | None]()
        with suppress(OSError, AttributeError):  # not every system has such memory
            own = OwnMemory()
        handles = objects_of_all(own and own.handle)
        with suppress(OSError):
            others += [None if of == rank else OtherMemory(handle) for of, handle in enumerate(handles) if handle]
        reached = all(objects_of_all(len(others) == ranks))
        return cls(own, others) if own and reached else None

    def exchange(self, message: Message) -> Iterator[Any]:
        """The same, copied out of the memory."""
        memory = self._own.view(message.size)
        message.write(memory)
        for other, room in zip(self._others, numbers_of_all(len(memory)), strict=True):
            yield other and read_message(other.view(room))

    def close(self) -> None:
        """Let go of the memory."""
        for memory in (self._own, *self._others):
            if memory is not None:
                memory.close()


class Sent:
    """Over the network."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def exchange(self, message: Message) -> Iterator[Any]:
        """The same, as it is received."""
        sent = torch.empty(max(numbers_of_all(message.size)), dtype=torch.uint8)
        message.write(sent.numpy().data)
        for rank, received in enumerate(tensors_of_all(sent)):
            yield read_message(received.numpy().data) if rank != self._rank else None

    def close(self) -> None:
        """It holds nothing."""
