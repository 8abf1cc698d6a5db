"""A worker that joins a cluster, and joins it again whenever its scheduler was away or the link was cut.

Dask's worker ends where it is cut off for about half a minute, as it never connects twice. Somebody must start it
again, and that is done here, for as long as the command runs.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
from distributed import Nanny, WorkerPlugin, rpc
from distributed.security import Security
from distributed.versions import get_versions

from roundweave.storage.errors import ClusterError, UsageError
from roundweave.tasks.executors.clusters.certificates import security_of
from roundweave.tasks.executors.clusters.fork_server import WORKER_ENVIRONMENT

SITE = "site-"
"""The prefix of the Dask resource by which a worker says its site, such as ``site-berlin``."""

ADDRESS = re.compile(r"(tcp|tls)://[^/]+:[0-9]+/?")
"""Matches the address of a scheduler."""

LONGEST_PAUSE = 60.0
"""Pauses between two attempts to reach a scheduler grow from a second to so many."""

ANSWER_SECONDS = 10.0
"""How long an attempt waits for the scheduler's answer."""

SETTINGS = {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
    "distributed.worker.preload": [
        "roundweave.tasks.executors.clusters.joining",
        "roundweave.tasks.executors.clusters.ready",
    ],
    # A link that is down for longer counts as cut.
    "distributed.comm.timeouts.tcp": "12s",
}
"""Dask's settings for a worker that joins from another machine."""


@dataclass(frozen=True)
class Joining:
    """Where a worker joins, and what it offers.

    `scheduler` is an address. `site` is the place whose data the worker can read, if it has one. `certificates` is
    the folder of its partner for ``tls://``. `host` is the address under which others reach it; by default that of
    the interface that leads to the scheduler. The worker is ended where it uses more than `memory_limit`, a size
    such as ``8GB`` or a fraction of this machine's memory. `say` is called with each line for the user.
    """

    scheduler: str
    site: str | None = None
    certificates: Path | None = None
    host: str | None = None
    memory_limit: str = "0.9"
    say: Callable[[str], None] = print
    security: Security = field(init=False)

    def __post_init__(self) -> None:
        security = Security() if self.certificates is None else security_of(self.certificates)
        if self.scheduler.startswith("tls://") and security.get_connection_args("worker")["ssl_context"] is None:
            raise UsageError(f"{self.scheduler} needs a key and certificates; give --certificates FOLDER")
        if not ADDRESS.fullmatch(self.scheduler):
            raise UsageError(f"{self.scheduler!r} is no address of a scheduler; give one such as tcp://head:8786")
        object.__setattr__(self, "security", security)

    def run(self) -> None:
        """Join, work, and join again, until the process is interrupted.

        Raises `ClusterError` if what answers is a scheduler whose Dask cannot work with this one.
        """
        with dask.config.set(SETTINGS):
            asyncio.run(self._run())

    async def _run(self) -> None:
        while True:
            await self._reachable()
            try:
                await self._work()
                self.say(f"the link to {self.scheduler} is gone; joining again")
            except (OSError, TimeoutError, RuntimeError) as error:
                self.say(f"could not join {self.scheduler} ({error}); trying again")
            await asyncio.sleep(1)

    async def _reachable(self) -> None:
        """Wait until the scheduler answers, with growing pauses; the first time without an answer is said."""
        pause = 1.0
        while (versions := await self._asked(said=pause > 1)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        check_versions(versions, self.scheduler)

    async def _asked(self, said: bool) -> dict[str, Any] | None:
        """The versions of the scheduler's packages; None if it does not answer."""
        arguments = self.security.get_connection_args("worker")
        try:
            async with rpc(self.scheduler, timeout=ANSWER_SECONDS, connection_args=arguments) as scheduler:
                answer = await asyncio.wait_for(scheduler.versions(), ANSWER_SECONDS)
                packages: dict[str, Any] = answer["packages"]
                return packages
        except (OSError, TimeoutError) as error:
            if not said:
                self.say(f"no scheduler answers at {self.scheduler} ({error}); trying again until it does")
            return None

    async def _work(self) -> None:
        """Join as one worker process of one thread, and return when the cluster has let go of it."""
        nanny = Nanny(
            self.scheduler,
            nthreads=1,
            resources={f"{SITE}{self.site}": 1} if self.site else None,
            security=self.security,
            host=self.host,
            memory_limit=self.memory_limit,
            silence_logs=logging.CRITICAL,  # what happens is said in lines of our own
        )
        async with nanny:
            at = f"site {self.site}, " if self.site else ""
            memory = f"{(nanny.memory_manager.memory_limit or 0) / 1e9:,.1f} GB at most"
            self.say(f"joined {self.scheduler} as {nanny.worker_address}: {at}one thread, {memory}")
            await nanny.finished()


def check_versions(theirs: dict[str, Any], scheduler: str) -> None:
    """Raise `ClusterError` if a scheduler's Dask is another one than this process has."""
    ours = get_versions()["packages"]
    other = [name for name in ("dask", "distributed") if theirs.get(name) != ours[name]]
    if other:
        differences = ", ".join(f"{name} {theirs.get(name)} there and {ours[name]} here" for name in other)
        raise ClusterError(f"{scheduler} has {differences}; install the same versions on both machines")


class Telling(WorkerPlugin):
    """Prints a line when the map of a partition ends in this worker, with its seconds, or fails."""

    name = "roundweave-telling"

    def setup(self, worker: Any) -> None:
        self.began: dict[Any, float] = {}

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Note when a map begins, and print when it ends."""
        if not (isinstance(key, tuple) and len(key) == 4 and key[0] in ("map", "push", "pushes")):
            return
        if finish == "executing":
            self.began[key] = time.monotonic()
        elif start == "executing" and (began := self.began.pop(key, None)) is not None:
            kind, _, number, block = key
            what = f"round {number}, block {block}" if kind == "map" else f"push {number} of partition {block}"
            how = "failed" if finish == "error" else "done"
            print(f"{time.strftime('%H:%M:%S')} {what}: {how} in {time.monotonic() - began:.1f} s", flush=True)


async def dask_setup(worker: Any) -> None:
    """Dask calls this in the worker process before it joins."""
    await worker.plugin_add(Telling())
