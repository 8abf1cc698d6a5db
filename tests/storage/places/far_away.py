"""A server as it is from far away: a proxy, in a process of its own, that counts requests and makes each wait.

    python far_away.py PORT

It says on which port it listens. To each line, the seconds that requests are late from now on, it answers how many
there were.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

REQUEST = b" HTTP/1.1\r\n"


@dataclass
class Proxied:
    """What came through so far, and how many seconds late it is."""

    target: int
    requests: int = 0
    seconds: float = 0.0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pass(reader, there[1], late=True), self._pass(there[0], writer, late=False))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: bool) -> None:
        """A line on which everything takes the same time, so that long contents are late once."""
        loop = asyncio.get_running_loop()
        seconds = self.seconds if late else 0.0
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.requests += data.count(REQUEST) if late else 0
                loop.call_later(seconds, writer.write, data)
        loop.call_later(seconds, writer.close)


async def _serve(target: int) -> None:
    proxied = Proxied(target)
    async with await asyncio.start_server(proxied.connect, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            print(proxied.requests, flush=True)
            proxied.seconds = float(line)


@dataclass
class Proxy:
    """A proxy's process, which listens on a port of this machine."""

    process: subprocess.Popen[str]
    port: int
    seconds: float
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def requests(self) -> int:
        """How many requests there were."""
        with self._lock:
            self.process.stdin.write(f"{self.seconds}\n")
            self.process.stdin.flush()
            return int(self.process.stdout.readline())


@contextmanager
def far_away(port: int, seconds: float = 0.0) -> Iterator[Proxy]:
    """A proxy of a server's port, on which requests are so many seconds late."""
    command = [sys.executable, str(Path(__file__)), str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        proxy = Proxy(process, int(process.stdout.readline()), seconds)
        assert proxy.requests == 0
        try:
            yield proxy
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
