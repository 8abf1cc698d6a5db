"""A group of ranks: who meets whom, and what each gives to all.

Built on torch.distributed with gloo; between processes of one machine the bytes go through memory that they share,
and gloo tells when they are there.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from tasks.gang.boards import Board, Sent, Shared
from tasks.gang.collectives import Broken
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
    """The ranks that have met; use `joined` to make one."""

    def __init__(self, seat: Seat) -> None:
        self.rank = seat.rank
        self.ranks = seat.ranks
        self._number = 0
        shared = [] if seat.ranks == 1 else [Shared.among(seat.rank, seat.ranks) for _ in range(2)]
        whole = [board for board in shared if board]
        self._boards: list[Board] = [*whole] if len(whole) == len(shared) else [Sent(seat.rank)]

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; raises `Broken` where one is gone."""
        if self.ranks == 1:
            return [value]
        # By turns: what is written on a board may still be read while the next message is written.
        self._number += 1
        board = self._boards[self._number % len(self._boards)]
        received = board.exchange(Message.of(value))
        return [value if rank == self.rank else other for rank, other in enumerate(received)]

    def close(self) -> None:
        """Let go of what is shared."""
        for board in self._boards:
            board.close()


@contextmanager
def joined(seat: Seat, halted: Callable[[], bool], door: TCPStore | None = None) -> Iterator[Group]:
    """Within, this process is a rank of a group; raises `Broken` where the others do not come, or once halted.

    The first rank brings the door that it has opened.
    """
    if seat.ranks == 1:
        yield Group(seat)
        return
    store = door or _entered(seat)
    _meet(store, seat, halted)
    with _speaking_from(seat):
        dist.init_process_group("gloo", store=store, rank=seat.rank, world_size=seat.ranks, timeout=FOREVER)
    try:
        group = Group(seat)
        try:
            yield group
        finally:
            group.close()
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
