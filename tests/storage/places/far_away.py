"""A server as it is from far away: a proxy that counts requests, and holds each back for some time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

REQUEST = b" HTTP/1.1\r\n"


class Proxy:
    """Passes what comes on to a port of this machine, so many seconds late; `requests` counts those of HTTP."""

    def __init__(self, target: int, seconds: float) -> None:
        self.target = target
        self.seconds = seconds
        self.requests = 0
        self.port = 0

    async def serve(self, ready: threading.Event, done: asyncio.Event) -> None:
        async with await asyncio.start_server(self._connect, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await done.wait()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pass(reader, there[1], self.seconds), self._pass(there[0], writer, 0.0))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        """A line on which everything takes the same time, so that long contents are late once."""
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.requests += data.count(REQUEST)
                loop.call_later(seconds, writer.write, data)
        loop.call_later(seconds, writer.close)


@contextmanager
def far_away(port: int, seconds: float = 0.0) -> Iterator[Proxy]:
    """A proxy of a server's port, in a thread of this process."""
    proxy, ready, loop = Proxy(port, seconds), threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(proxy.serve(ready, done)), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
