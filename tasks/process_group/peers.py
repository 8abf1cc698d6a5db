"""Connections of the first rank of a group with each other one, by which either sends when it has something.

They are none of gloo's: gloo takes many times as long to receive from whichever rank sends first, and then does
not notice that a rank is gone.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from roundweave.tasks.process_group.channels import broken_by
from roundweave.tasks.process_group.group import FORMING, Group
from roundweave.tasks.process_group.messages import Message


class Peers:
    """The ranks at the other ends of this one's `connections`, by rank.

    `received` has what they sent, with the rank, in the order in which it came, and None if one is `gone`. Threads
    receive, so that who sends to a rank that is busy does not wait for it.
    """

    def __init__(self, connections: Mapping[int, socket.socket]) -> None:
        self.received = SimpleQueue[tuple[int, Any]]()
        self.gone = False
        self._connections = connections
        for rank in connections:
            Thread(target=self._receive, args=(rank,), daemon=True).start()

    def send(self, rank: int, value: Any) -> None:
        """Send a value, whose tensors must be in records. Raises `Broken` if the rank is gone."""
        with broken_by(OSError):
            for part in Message.of(value).parts:
                self._connections[rank].sendall(part)

    def close(self) -> None:
        """Disconnect, which the other ranks notice, and the threads that receive."""
        for connection in self._connections.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _receive(self, rank: int) -> None:
        stream = self._connections[rank].makefile("rb")

        def read(size: int) -> bytearray:
            read = bytearray(size)
            if stream.readinto(read) < size:
                raise ConnectionError
            return read

        try:
            with suppress(OSError):
                while True:
                    sizes = np.frombuffer(read(8 * int.from_bytes(read(8), "little")), "<i8")
                    body, *buffers = [read(int(size)) for size in sizes]
                    self.received.put((rank, pickle.loads(body, buffers=buffers)))
        finally:
            self.gone = True
            self.received.put((rank, None))


@contextmanager
def meet_peers(group: Group, host: str) -> Iterator[Peers]:
    """The first rank, or for that one all others. It listens at its own `host`. They are disconnected at the end.

    All ranks must enter it together. Raises `Broken` if one does not come within a minute.
    """
    found, seconds = dict[int, socket.socket](), FORMING.total_seconds()
    with ExitStack() as stack:
        with broken_by(OSError):
            listening = None if group.rank else socket.create_server((host, 0), backlog=128 + group.ranks)
            stack.enter_context(listening or nullcontext())
            place = group.all_gather(listening and (host, listening.getsockname()[1]))[0]
            if listening is None:
                found[0] = stack.enter_context(socket.create_connection(place, seconds))
            names = group.all_gather(found and found[0].getsockname())
            while listening and len(found) < group.ranks - 1:
                listening.settimeout(seconds)
                connection, name = listening.accept()
                stack.enter_context(connection)
                if name in names:  # else it is a stranger's
                    found[names.index(name)] = connection
        for connection in found.values():
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        group.connections.watch()
        yield stack.enter_context(closing(Peers(found)))
