"""The TCP connections of a process group, by which ranks notice that others are gone.

A rank that dies closes its connections, but a link that is cut, or a rank that is stopped, leaves them open.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

SILENT_SECONDS = 60
"""Seconds without an answer from the other machine's system, after which a connection is broken."""

LOOK_SECONDS = 1.0
"""The seconds between two looks at whether anybody still waits for a rank."""

KEEPALIVE = {
    (socket.SOL_SOCKET, "SO_KEEPALIVE"): 1,
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE"): SILENT_SECONDS // 4,
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL"): SILENT_SECONDS // 4,
    (socket.IPPROTO_TCP, "TCP_KEEPCNT"): 3,
    # Sent data that is not acknowledged counts as silence, too; else the system tries for a quarter of an hour.
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"): 1000 * SILENT_SECONDS,
}
"""Options of sockets by level and name. Maps of any length are no silence, as the system answers by itself."""


class Connections:
    """The connections that this process opens while its group is `forming`, each watched by a heartbeat of TCP."""

    def __init__(self) -> None:
        self._ours: set[Any] = set()
        self._before: set[Any] | None = None

    @contextmanager
    def forming(self) -> Iterator[None]:
        """A context in which the group, or a part of it, connects its ranks."""
        self._before = _connections()
        try:
            yield
        finally:
            self._ours |= _connections() - self._before
            self._before = None
        self._each(_watch)

    @contextmanager
    def broken_once(self, forgotten: Callable[[], bool]) -> Iterator[None]:
        """A context in which the connections are broken once `forgotten` is true, so that no exchange waits on."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(LOOK_SECONDS):
                if forgotten():
                    self._each(_break)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            done.set()
            looking.join()

    def _each(self, act: Callable[[socket.socket], None]) -> None:
        """Do something to each connection that is still open."""
        now = _connections()
        for each in now & self._ours if self._before is None else now - (self._before - self._ours):
            with suppress(OSError), socket.socket(fileno=os.dup(each[0])) as connected:
                act(connected)


def _connections() -> set[Any]:
    """The TCP connections of this process: file descriptor and both addresses, which tell them from later ones."""
    every = psutil.Process().net_connections("tcp")
    return {(each.fd, each.laddr, each.raddr) for each in every if each.raddr}


def _watch(connected: socket.socket) -> None:
    for (level, name), value in KEEPALIVE.items():
        if hasattr(socket, name):  # not every system has all of them
            connected.setsockopt(level, getattr(socket, name), value)


def _break(connected: socket.socket) -> None:
    connected.shutdown(socket.SHUT_RDWR)
