"""How ranks exchange messages: through shared memory on one machine, or else over the network.

Both use exchanges through torch.distributed, of numbers, objects and tensors.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from roundweave.storage.parsing import mistakes_as
from roundweave.tasks.process_group.messages import Message, read_message


class Broken(BaseException):
    """A rank of the group is gone or never came, so that the others cannot go on.

    It is a `BaseException`, so that code which handles errors of a map or of a user does not catch it.
    """


class Collectives:
    """Exchanges in which all ranks of a group must take part. Each raises `Broken` if a rank is gone."""

    def __init__(self, process_group: Any = None) -> None:
        self._group = process_group
        self.ranks = dist.get_world_size(process_group)

    def numbers(self, number: int) -> list[int]:
        """Return the numbers of all ranks in their order. Returns once all ranks have called it."""
        numbers = torch.zeros(self.ranks, dtype=torch.int64)
        numbers[dist.get_rank(self._group)] = number
        unbroken(lambda: dist.all_reduce(numbers, group=self._group))  # takes half the time of `tensors`
        return numbers.tolist()

    def objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks in their order; for small ones, which are pickled."""
        values: list[Any] = [None] * self.ranks
        unbroken(lambda: dist.all_gather_object(values, value, group=self._group))
        return values

    def tensors(self, sent: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks in their order; they must have one shape and dtype."""
        received = [torch.empty_like(sent) for _ in range(self.ranks)]
        unbroken(lambda: dist.all_gather(received, sent, group=self._group))
        return received

    def scattered(self, sent: torch.Tensor, sizes: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """Send each rank its part of `sent`, (byte,), of `sizes` bytes each.

        Returns the parts that the ranks sent to this one, (byte,) in their order, of `received` bytes each.
        """
        whole = torch.empty(sum(received), dtype=torch.uint8)
        unbroken(lambda: dist.all_to_all_single(whole, sent, [*received], [*sizes], group=self._group))
        return whole

    def close(self) -> None:
        """Disconnect from the other ranks, which notice it."""
        # An error keeps the variables of the frames that it passed: a group among them would stay connected.
        ours, self._group = self._group, None
        if ours is not None:
            dist.destroy_process_group(ours)


def unbroken(exchange: Callable[[], Any]) -> Any:
    """Return what an exchange returns. Raises `Broken` if it fails because a rank is gone."""
    with broken_by(RuntimeError):
        return exchange()


def broken_by(kind: type[Exception]) -> AbstractContextManager[None]:
    """Return a context whose errors of this kind are raised as `Broken`."""
    return mistakes_as(lambda error: Broken(str(error)), kind)


@dataclass(frozen=True)
class Handle:
    """What another process of this machine needs to open a memory: the owner's process id and file descriptor.

    The memory is an anonymous file, which has no name in any folder.
    """

    process: int
    file: int


class OwnMemory:
    """Shared memory that this process writes. Raises `OSError` if the system has no such memory, or too little."""

    def __init__(self) -> None:
        self._file = os.memfd_create("roundweave", os.MFD_CLOEXEC)
        self._memory: mmap.mmap | None = None
        self.handle = Handle(os.getpid(), self._file)

    def view(self, size: int) -> memoryview:
        """Return a view of at least `size` bytes, (byte,); the memory grows if it is too small."""
        if self._memory is None or len(self._memory) < size:
            room = size + size // 4
            os.posix_fallocate(self._file, 0, room)
            self._memory = mmap.mmap(self._file, room)
        return memoryview(self._memory)

    def close(self) -> None:
        os.close(self._file)


class OtherMemory:
    """Shared memory that another process writes. Raises `OSError` if it cannot be opened."""

    def __init__(self, handle: Handle) -> None:
        self._file = os.open(f"/proc/{handle.process}/fd/{handle.file}", os.O_RDONLY)
        self._memory: mmap.mmap | None = None

    def view(self, room: int) -> memoryview:
        """Return a view of the memory, (byte,); `room` is the size that it has by now."""
        if self._memory is None or len(self._memory) != room:
            self._memory = mmap.mmap(self._file, room, prot=mmap.PROT_READ)
        return memoryview(self._memory)

    def close(self) -> None:
        os.close(self._file)


class Channel(Protocol):
    """A way to exchange messages among ranks. All ranks must call each function at the same time."""

    def exchange(self, message: Message) -> Iterator[Any]:
        """Send a message to all ranks, and yield the values of all ranks in their order, None for this rank."""

    def scatter(self, messages: Sequence[Message]) -> Iterator[Any]:
        """Send one message to each rank, and yield the value from each rank in their order, None for this rank."""

    def close(self) -> None:
        """Free the memory of the channel."""


@dataclass(frozen=True)
class SharedMemory:
    """A channel through memory that ranks of one machine share. A message stays until its rank writes the next."""

    rank: int
    own: OwnMemory
    others: list[OtherMemory | None]
    all_ranks: Collectives

    @classmethod
    def among(cls, rank: int, all_ranks: Collectives) -> SharedMemory | None:
        """Return a channel of all ranks; None if some rank cannot open the memory of another."""
        own, others = None, list[OtherMemory | None]()
        with suppress(OSError, AttributeError):  # not every system has such memory
            own = OwnMemory()
        handles = all_ranks.objects(own and own.handle)
        with suppress(OSError):
            others += [None if of == rank else OtherMemory(handle) for of, handle in enumerate(handles) if handle]
        reached = all(all_ranks.objects(len(others) == all_ranks.ranks))
        return cls(rank, own, others, all_ranks) if own and reached else None

    def exchange(self, message: Message) -> Iterator[Any]:
        memory = self.own.view(message.size)
        message.write(memory)
        for other, room in zip(self.others, self.all_ranks.numbers(len(memory)), strict=True):
            yield other and read_message(other.view(room))

    def scatter(self, messages: Sequence[Message]) -> Iterator[Any]:
        # A rank writes the offsets of its messages, 8 bytes each, and then the messages one after the other.
        begins = [8 * len(messages)]
        for message in messages:
            begins.append(begins[-1] + message.size)
        memory = self.own.view(begins[-1])
        memory[: begins[0]] = torch.tensor(begins[:-1]).numpy().data.cast("B")
        for begin, message in zip(begins, messages, strict=False):
            message.write(memory[begin:])
        for other, room in zip(self.others, self.all_ranks.numbers(len(memory)), strict=True):
            yield other and read_message(_from(other.view(room), self.rank))

    def close(self) -> None:
        for memory in (self.own, *self.others):
            if memory is not None:
                memory.close()


def _from(memory: memoryview, number: int) -> memoryview:
    """Return the part of a memory, (byte,), that begins with the message of this number."""
    return memory[int(memory[8 * number : 8 * number + 8].cast("q")[0]) :]


@dataclass(frozen=True)
class Network:
    """A channel over the network, for ranks on several machines."""

    rank: int
    all_ranks: Collectives

    def exchange(self, message: Message) -> Iterator[Any]:
        sent = torch.empty(max(self.all_ranks.numbers(message.size)), dtype=torch.uint8)
        message.write(sent.numpy().data)
        for rank, received in enumerate(self.all_ranks.tensors(sent)):
            yield read_message(received.numpy().data) if rank != self.rank else None

    def scatter(self, messages: Sequence[Message]) -> Iterator[Any]:
        sizes = [0 if rank == self.rank else message.size for rank, message in enumerate(messages)]
        received = [int(each[self.rank]) for each in self.all_ranks.tensors(torch.tensor(sizes))]
        sent = torch.empty(sum(sizes), dtype=torch.uint8)
        for part, size, message in zip(sent.split(sizes), sizes, messages, strict=True):
            if size:
                message.write(part.numpy().data)
        for part in self.all_ranks.scattered(sent, sizes, received).split(received):
            yield read_message(part.numpy().data) if len(part) else None

    def close(self) -> None:
        pass
