"""A process group: how its ranks meet, and how they exchange values.

It uses torch.distributed with gloo. Between processes of one machine, values go through shared memory, and gloo
only tells the others when they are there. Ranks notice by their TCP connections that others are gone: one that
dies closes them. A link that is cut, or a process that is stopped, leaves them open.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import psutil
import torch.distributed as dist

# The group that is there when it is imported is a default of its functions, and would never be disconnected.
import torch.distributed.nn  # noqa: F401
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from roundweave.tasks.compute.communicator import Alone
from roundweave.tasks.process_group.channels import Broken, Channel, Collectives, Network, SharedMemory, unbroken
from roundweave.tasks.process_group.messages import Message

HEARTBEAT = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""Options of a socket, by which it is broken after a minute (seconds, and milliseconds) without an answer.

The other machine's system answers by itself, so that a map may take any time. The last is for data that are sent
and not acknowledged.
"""


class Connections:
    """The connections of a group: those that this process opens from now on until it calls `watch` last."""

    def __init__(self) -> None:
        self._before = _connections()
        self._own: set[Any] = set()

    def watch(self) -> None:
        """Have the system break the connections once a link has been cut for a minute."""
        self._own = _connections() - self._before
        for file, *_ in self._own:
            with suppress(OSError), socket.socket(fileno=os.dup(file)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in HEARTBEAT.items():
                    if hasattr(socket, name):  # not every system has all of them
                        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def shut(self) -> None:
        """Break the connections, so that an exchange which waits for others ends; also while the group forms."""
        now = _connections()
        for file, *_ in now & self._own if self._own else now - self._before:
            with suppress(OSError), socket.socket(fileno=os.dup(file)) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> set[Any]:
    """The TCP connections of this process: file descriptor and both addresses, which tell them from later ones."""
    every = psutil.Process().net_connections("tcp")
    return {(each.fd, each.laddr, each.raddr) for each in every if each.raddr}


FORMING = timedelta(seconds=60)
"""How long ranks wait for each other when they meet and connect."""

LOOK_SECONDS = 0.2
"""Seconds after which a rank that waits for others checks whether it was halted."""

FOREVER = timedelta(days=365)
"""The timeout of exchanges: a map may take any time, and a lost rank is noticed by its connections."""


@dataclass(frozen=True)
class Rendezvous:
    """Where ranks meet: rank 0 listens at `host` and `port`. This process is number `rank` of `ranks`."""

    rank: int
    ranks: int
    host: str
    port: int


def open_rendezvous(host: str) -> TCPStore:
    """Listen for ranks at a free port of this machine, with this host name, until the result is deleted."""
    with socket.create_server((host, 0)) as listening:
        port, file = listening.getsockname()[1], listening.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=file)


class Group:
    """The communicator of several ranks that have met; `join_group` and `part` make it."""

    def __init__(self, rank: int, connections: Connections, process_group: Any = None) -> None:
        formed: Any = process_group or dist.group.WORLD
        formed.set_timeout(FOREVER)
        connections.watch()
        self.connections = connections
        self._all_ranks = Collectives(process_group)
        self.rank = rank
        self.ranks = self._all_ranks.ranks
        self.sent = 0
        self._number = 0
        self._channels = _channels(rank, self._all_ranks)
        self._parts: list[Group] = []

    def all_gather(self, value: Any) -> list[Any]:
        message = Message.of(value)
        self.sent += message.size * (self.ranks - 1)
        received = self._channel().exchange(message)
        return [value if rank == self.rank else other for rank, other in enumerate(received)]

    def scatter(self, values: Sequence[Any]) -> list[Any]:
        messages = [Message.of(None if rank == self.rank else value) for rank, value in enumerate(values)]
        self.sent += sum(message.size for rank, message in enumerate(messages) if rank != self.rank)
        received = self._channel().scatter(messages)
        return [values[rank] if rank == self.rank else other for rank, other in enumerate(received)]

    def part(self, parts: Sequence[Sequence[int]]) -> Group | Alone:
        """Return the group of the part that this rank is in. All ranks must call it with the same `parts`."""
        mine: Group | Alone = Alone()
        for ranks in parts:
            if len(ranks) > 1:
                # Torch demands that all ranks make all parts, also those that they are not in.
                process_group = unbroken(partial(dist.new_group, [*ranks], timeout=FORMING, backend="gloo"))
                if self.rank in ranks:
                    mine = Group(ranks.index(self.rank), self.connections, process_group)
                    self._parts.append(mine)
        return mine

    def close(self) -> None:
        """Disconnect from the other ranks, and free the memory shared with them."""
        for part in self._parts:
            part.close()
        for channel in self._channels:
            channel.close()
        self._all_ranks.close()

    def _channel(self) -> Channel:
        """Return the next channel.

        Two alternate, as others may still read from one while the next message is written.
        """
        self._number += 1
        return self._channels[self._number % len(self._channels)]


def _channels(rank: int, all_ranks: Collectives) -> list[Channel]:
    """Two channels in shared memory if all ranks can open it, else one over the network."""
    shared = [SharedMemory.among(rank, all_ranks) for _ in range(2)]
    whole: list[Channel] = [channel for channel in shared if channel]
    return whole if len(whole) == len(shared) else [Network(rank, all_ranks)]


@contextmanager
def join_group(
    meeting: Rendezvous, halted: Callable[[], bool], connections: Connections, opened: TCPStore | None = None
) -> Iterator[Group | Alone]:
    """Make this process a rank of a group until the context ends. Its `connections` may be shut at any time.

    Rank 0 passes `opened`, the result of `open_rendezvous`. Raises `Broken` if the other ranks do not come within
    a minute, or if `halted` returns true while it waits.
    """
    if meeting.ranks == 1:
        yield Alone()
        return
    store = opened or unbroken(partial(TCPStore, meeting.host, meeting.port, timeout=FORMING))
    _meet(store, meeting, halted)
    with _interface_chosen(meeting):
        who: dict[str, Any] = {"rank": meeting.rank, "world_size": meeting.ranks}
        unbroken(partial(dist.init_process_group, "gloo", store=store, timeout=FORMING, **who))
        try:
            with closing(Group(meeting.rank, connections)) as group:
                yield group
        finally:
            dist.destroy_process_group()


def _meet(store: TCPStore, meeting: Rendezvous, halted: Callable[[], bool]) -> None:
    """Wait until all ranks are there. Raises `Broken` if they do not come."""
    store.set(f"here/{meeting.rank}", "yes")
    waited_for = [f"here/{rank}" for rank in range(meeting.ranks)]
    until = time.monotonic() + FORMING.total_seconds()
    while time.monotonic() < until and not halted():
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
def _interface_chosen(meeting: Rendezvous) -> Iterator[None]:
    """Have gloo use the network interface that leads to the ranks' host, and not that of this host's name."""
    before = os.environ.get(INTERFACE)
    if before is None and (interface := _interface(meeting.host)):
        os.environ[INTERFACE] = interface
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(INTERFACE, None)


def _interface(host: str) -> str | None:
    """Return the name of the network interface by which this machine reaches a host; None if it is not known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        here = probe.getsockname()[0]
    interfaces: dict[str, list[Any]] = psutil.net_if_addrs()
    return next((name for name, each in interfaces.items() if here in [at.address for at in each]), None)
