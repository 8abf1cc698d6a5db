"""A group of ranks: who meets whom, and what each gives to all.

Built on torch.distributed with gloo; between processes of one machine the bytes go through memory that they share,
and gloo tells when they are there.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tasks.gang.boards import Board, Sent, Shared
from tasks.gang.collectives import Broken, Collectives
from tasks.gang.messages import Message

FORMING_SECONDS = 60
"""How long ranks wait for each other to come."""

LOOK_SECONDS = 0.2
"""How often a rank that waits for others looks whether it still should."""

FOREVER = timedelta(days=365)
"""A map may take any time: who is lost is known by its connection."""


@dataclass(frozen=True)
class Seat:
    """One rank of so many, and the machine and port where all of them meet."""

    rank: int
    ranks: int
    host: str
    port: int


def open_door(host: str) -> TCPStore:
    """Where ranks meet: at a free port of this machine, which it listens at as this host while it is held."""
    with socket.create_server((host, 0)) as listening:
        port, file = listening.getsockname()[1], listening.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=file)


class Group:
    """Ranks that have met, this one as the so-manieth of them; use `joined` and `part` to make one.

    `sent` counts the bytes that this one has for others.
    """

    def __init__(self, rank: int, ranks: int, process_group: Any = None) -> None:
        self.rank = rank
        self.ranks = ranks
        self.sent = 0
        self._number = 0
        self._all_ranks = Collectives(process_group) if ranks > 1 else None
        self._boards = _boards(rank, self._all_ranks) if self._all_ranks else []
        self._parts: list[Group] = []

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; raises `Broken` where one is gone."""
        if self.ranks == 1:
            return [value]
        message = Message.of(value)
        self.sent += message.size * (self.ranks - 1)
        received = self._board().exchange(message)
        return [value if rank == self.rank else other for rank, other in enumerate(received)]

    def scatter(self, values: Sequence[Any]) -> list[Any]:
        """What each rank, in their order, has for this one, of `values` for each of them; as `all_gather`."""
        if self.ranks == 1:
            return [*values]
        messages = [Message.of(None if rank == self.rank else value) for rank, value in enumerate(values)]
        self.sent += sum(message.size for rank, message in enumerate(messages) if rank != self.rank)
        received = self._board().scatter(messages)
        return [values[rank] if rank == self.rank else other for rank, other in enumerate(received)]

    def part(self, parts: Sequence[Sequence[int]]) -> Group:
        """The part, of some that all ranks name, that this one is in; a rank is in one of them."""
        mine: Group | None = None
        for ranks in parts:
            # All ranks make all parts, also those that they are not in.
            process_group = dist.new_group([*ranks], timeout=FOREVER, backend="gloo") if len(ranks) > 1 else None
            if self.rank in ranks:
                mine = Group(ranks.index(self.rank), len(ranks), process_group)
                self._parts.append(mine)
        assert mine is not None
        return mine

    def close(self) -> None:
        """Let go of what is shared."""
        for part in self._parts:
            part.close()
        for board in self._boards:
            board.close()
        if self._all_ranks:
            self._all_ranks.close()

    def _board(self) -> Board:
        """By turns: what is written on a board may still be read while the next message is written."""
        self._number += 1
        return self._boards[self._number % len(self._boards)]


def _boards(rank: int, all_ranks: Collectives) -> list[Board]:
    """Two of memory, where all reach it."""
    shared = [Shared.among(rank, all_ranks) for _ in range(2)]
    whole: list[Board] = [board for board in shared if board]
    return whole if len(whole) == len(shared) else [Sent(rank, all_ranks)]


@contextmanager
def joined(seat: Seat, halted: Callable[[], bool], door: TCPStore | None = None) -> Iterator[Group]:
    """Within, this process is a rank of a group; raises `Broken` where the others do not come, or once halted.

    The first rank brings the door that it has opened.
    """
    if seat.ranks == 1:
        yield Group(0, 1)
        return
    store = door or _entered(seat)
    _meet(store, seat, halted)
    with _speaking_from(seat):
        dist.init_process_group("gloo", store=store, rank=seat.rank, world_size=seat.ranks, timeout=FOREVER)
        try:
            with closing(Group(seat.rank, seat.ranks)) as group:
                yield group
        finally:
            dist.destroy_process_group()


def _entered(seat: Seat) -> TCPStore:
    try:
        return TCPStore(seat.host, seat.port, timeout=timedelta(seconds=FORMING_SECONDS))
    except RuntimeError as error:
        raise Broken(str(error)) from error


def _meet(store: TCPStore, seat: Seat, halted: Callable[[], bool]) -> None:
    """Wait until all ranks are there."""
    store.set(f"here/{seat.rank}", "yes")
    waited_for = [f"here/{rank}" for rank in range(seat.ranks)]
    deadline = time.monotonic() + FORMING_SECONDS
    while time.monotonic() < deadline and not halted():
        try:
            store.wait(waited_for, timedelta(seconds=LOOK_SECONDS))
            return
        except dist.DistStoreError:
            continue
        except RuntimeError as error:
            raise Broken(str(error)) from error
    raise Broken("not all ranks came")


INTERFACE = "GLOO_SOCKET_IFNAME"


@contextmanager
def _speaking_from(seat: Seat) -> Iterator[None]:
    """Within, gloo speaks from the network that leads to where the ranks meet, and not from the host's name."""
    before = os.environ.get(INTERFACE)
    if before is None and (interface := _interface(seat.host)):
        os.environ[INTERFACE] = interface
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(INTERFACE, None)


def _interface(host: str) -> str | None:
    """The network interface from which this machine reaches a host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        here = probe.getsockname()[0]
    interfaces: dict[str, list[Any]] = psutil.net_if_addrs()
    return next((name for name, each in interfaces.items() if here in [at.address for at in each]), None)
