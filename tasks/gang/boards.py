"""Where ranks read each other's messages: memory that they share, or what is sent over the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from tasks.gang.collectives import Collectives
from tasks.gang.messages import Message, read_message
from tasks.gang.shared import OtherMemory, OwnMemory


class Board(Protocol):
    """Takes a message of each rank at a time."""

    def exchange(self, message: Message) -> Iterator[Any]:
        """The values of all ranks, in their order; of this one None."""
        ...

    def scatter(self, messages: Sequence[Message]) -> Iterator[Any]:
        """The value that each rank, in their order, has for this one, which has one for each; of this one None."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class Shared:
    """In memory that all ranks of one machine share; a message is there until the next but one is told."""

    def __init__(
        self, rank: int, own: OwnMemory, others: list[OtherMemory | None], all_ranks: Collectives
    ) -> None:
        self._rank = rank
        self._own = own
        self._others = others
        self._all_ranks = all_ranks

    @classmethod
    def among(cls, rank: int, all_ranks: Collectives) -> Shared | None:
        """One of all ranks, None where any of them does not reach the memory of another."""
        own, others = None, list[OtherMemory | None]()
        with suppress(OSError, AttributeError):  # not every system has such memory
            own = OwnMemory()
        handles = all_ranks.objects(own and own.handle)
        with suppress(OSError):
            others += [None if of == rank else OtherMemory(handle) for of, handle in enumerate(handles) if handle]
        reached = all(all_ranks.objects(len(others) == all_ranks.ranks))
        return cls(rank, own, others, all_ranks) if own and reached else None

    def exchange(self, message: Message) -> Iterator[Any]:
        """The same, copied out of the memory."""
        memory = self._own.view(message.size)
        message.write(memory)
        for other, room in zip(self._others, self._all_ranks.numbers(len(memory)), strict=True):
            yield other and read_message(other.view(room))

    def scatter(self, messages: Sequence[Message]) -> Iterator[Any]:
        """The same: one message after the other, and before them where each begins."""
        begins = [8 * len(messages)]
        for message in messages:
            begins.append(begins[-1] + message.size)
        memory = self._own.view(begins[-1])
        memory[: begins[0]] = torch.tensor(begins[:-1]).numpy().data.cast("B")
        for begin, message in zip(begins, messages, strict=False):
            message.write(memory[begin:])
        for other, room in zip(self._others, self._all_ranks.numbers(len(memory)), strict=True):
            yield other and read_message(_from(other.view(room), self._rank))

    def close(self) -> None:
        """Let go of the memory."""
        for memory in (self._own, *self._others):
            if memory is not None:
                memory.close()


def _from(memory: memoryview, number: int) -> memoryview:
    """A memory from where the message of this number begins."""
    return memory[int(memory[8 * number : 8 * number + 8].cast("q")[0]) :]


class Sent:
    """Over the network."""

    def __init__(self, rank: int, all_ranks: Collectives) -> None:
        self._rank = rank
        self._all_ranks = all_ranks

    def exchange(self, message: Message) -> Iterator[Any]:
        """The same, as it is received."""
        sent = torch.empty(max(self._all_ranks.numbers(message.size)), dtype=torch.uint8)
        message.write(sent.numpy().data)
        for rank, received in enumerate(self._all_ranks.tensors(sent)):
            yield read_message(received.numpy().data) if rank != self._rank else None

    def scatter(self, messages: Sequence[Message]) -> Iterator[Any]:
        """The same, as it is received."""
        sizes = [0 if rank == self._rank else message.size for rank, message in enumerate(messages)]
        received = [int(told[self._rank]) for told in self._all_ranks.tensors(torch.tensor(sizes))]
        sent = torch.empty(sum(sizes), dtype=torch.uint8)
        for part, size, message in zip(sent.split(sizes), sizes, messages, strict=True):
            if size:
                message.write(part.numpy().data)
        for part in self._all_ranks.scattered(sent, sizes, received).split(received):
            yield read_message(part.numpy().data) if len(part) else None

    def close(self) -> None:
        """It holds nothing."""
