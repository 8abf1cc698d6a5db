"""The TCP connections of a process group, by which ranks notice that others are gone.

A rank that dies closes its connections. A link that is cut, or a process that is stopped, leaves them open.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

import psutil

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
