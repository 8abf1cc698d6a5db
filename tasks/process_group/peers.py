"""Connections of the first rank of a group with each other one, by which either sends when it has something.

They are none of gloo's: gloo takes many times as long to receive from whichever rank sends first, and
then does not notice that a rank is gone.
"""

from __future__ import annotations

import pickle
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from roundweave.tasks.process_group.channels import Broken
from roundweave.tasks.process_group.group import FORMING, Connections, Group
from roundweave.tasks.process_group.messages import Message

SECRET_BYTES = 16
"""The bytes by which the first rank knows the others, before it reads anything else of what they send."""


class Peer:
    """Another rank, at the end of a connection. Each function raises `Broken` once it is gone."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection

    def send(self, value: Any) -> None:
        """Send a value, whose tensors must be in records. Waits while the other rank does not receive it."""
        try:
            for piece in Message.of(value).parts:
                self.connection.sendall(piece)
        except OSError as error:
            raise Broken(str(error)) from error

    def receive(self) -> Any:
        """Wait for the next value."""
        count = int.from_bytes(self.read(8), "little")
        body, *buffers = [self.read(int(size)) for size in np.frombuffer(self.read(8 * count), "<i8")]
        return pickle.loads(body, buffers=buffers)

    def incoming(self) -> Iterator[Any]:
        """Yield the values that come until one is None. Those before it that are not yielded yet are dropped.

        A thread receives them, so that the other rank need not wait until they are used.
        """
        received, ended, failed = SimpleQueue[Any](), threading.Event(), list[BaseException]()

        def receive() -> None:
            try:
                while (value := self.receive()) is not None:
                    received.put(value)
            except BaseException as error:  # noqa: BLE001 - it is raised where values are waited for
                failed.append(error)
            ended.set()
            received.put(None)

        threading.Thread(target=receive, daemon=True).start()
        while (value := received.get()) is not None and not ended.is_set():
            yield value
        if failed:
            raise failed[0]

    def read(self, size: int) -> bytearray:
        """Wait for the next bytes, (size,)."""
        read = bytearray(size)
        left = memoryview(read)
        try:
            while left:
                if not (count := self.connection.recv_into(left, 0, socket.MSG_WAITALL)):
                    raise Broken("a rank is gone")
                left = left[count:]
        except OSError as error:
            raise Broken(str(error)) from error
        return read

    def close(self) -> None:
        """Disconnect, which the other rank notices, also while a thread receives."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


@contextmanager
def meet_peers(group: Group, connections: Connections, host: str) -> Iterator[dict[int, Peer]]:
    """The other ends of this rank's connections by rank, until the context ends. The first rank listens at `host`.

    All ranks must enter it together. Raises `Broken` if one does not come within a minute.
    """
    peers: dict[int, Peer] = {}
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server((host, 0))) if group.rank == 0 else None
        own = listening and (listening.getsockname()[1], secrets.token_bytes(SECRET_BYTES))
        port, secret = group.all_gather(own)[0]
        try:
            if listening is None:
                peers[0] = Peer(socket.create_connection((host, port), FORMING.total_seconds()))
                stack.callback(peers[0].close)
                peers[0].connection.sendall(secret + group.rank.to_bytes(4, "little"))
            while listening is not None and len(peers) < group.ranks - 1:
                listening.settimeout(FORMING.total_seconds())
                peer = Peer(listening.accept()[0])
                stack.callback(peer.close)
                peer.connection.settimeout(FORMING.total_seconds())
                with suppress(Broken):  # of a stranger
                    if peer.read(SECRET_BYTES) == secret:
                        peers[int.from_bytes(peer.read(4), "little")] = peer
        except OSError as error:
            raise Broken(str(error)) from error
        for peer in peers.values():
            peer.connection.settimeout(None)
        connections.watch()
        yield peers
