"""A worker that joins a cluster, and joins it again whenever its scheduler was away or the link was cut.

Dask's worker ends if it is cut off for about half a minute, as it never connects twice. Somebody must start it
again, and that is done here, for as long as the command runs.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
from distributed import Nanny, WorkerPlugin, rpc
from distributed.security import Security
from distributed.versions import get_versions
from distributed.worker_memory import parse_memory_limit

from roundweave.storage.errors import ClusterError, RoundweaveError, UsageError, listed, printable, reason
from roundweave.tasks.data.splits.placement import Placement
from roundweave.tasks.executors.clusters.certificates import security_for
from roundweave.tasks.executors.clusters.connecting import NO_PAGES, root_of
from roundweave.tasks.executors.clusters.fork_server import MIB, WORKER_ENVIRONMENT

ADDRESS = re.compile(r"(tcp|tls)://[^/\s]+:[0-9]+")
"""Matches the address of a scheduler."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Pauses between two attempts to join grow from one to the other, in seconds."""

ANSWER_SECONDS = 10.0
"""How long an attempt waits for the scheduler's answer."""

LEAST_MEMORY = 256 * MIB
"""The smallest limit of memory in bytes; a worker that has imported torch uses 180 MB."""

SILENT = dict.fromkeys((f"DASK_DISTRIBUTED__LOGGING__{name}" for name in ("DISTRIBUTED", "ASYNCIO")), "critical")
"""The variables by which Dask logs nothing in a new process, as what happens is said in lines of our own."""

SETTINGS = NO_PAGES | {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT | SILENT,
    "distributed.worker.preload": [
        "roundweave.tasks.executors.clusters.joining",
        "roundweave.tasks.executors.clusters.ready",
    ],
    # A link that is down for longer counts as cut.
    "distributed.comm.timeouts.tcp": "12s",
}
"""Dask's settings for a worker that joins from another machine."""


def join_cluster(
    scheduler: str, at: Placement, certificates: Path | None, host: str | None, memory_limit: str
) -> None:
    """Work for the cluster of the scheduler at an address, and join it again, until SIGINT or SIGTERM.

    An address of ``tls://`` needs a partner's folder of `certificates`. `at` is the place whose data the worker
    can read, if it has one. `host` is the address of this machine that others reach, by default that of the
    interface which leads to the scheduler. A worker that uses more than `memory_limit`, a size such as ``8GB`` or
    a fraction of this machine's memory, is ended. Raises `UsageError` for what cannot be, and `ClusterError` if
    what answers is a scheduler whose Dask cannot work with this one.
    """
    if not ADDRESS.fullmatch(scheduler):
        raise UsageError(f"{scheduler!r} is no address of a scheduler; give one such as tcp://head:8786")
    memory, security = memory_of(memory_limit), security_for(scheduler, certificates, "worker")
    how: dict[str, Any] = {"memory_limit": memory, "resources": dict.fromkeys(at.resources, 1) or None}
    worker = partial(Nanny, scheduler, nthreads=1, host=host, security=security, **how)
    offer = f"{f'{at.label(0)}, ' if at.stays else ''}one thread, {memory / 1e9:,.1f} GB at most"
    logging.disable()
    with dask.config.set(SETTINGS), suppress(asyncio.CancelledError):
        asyncio.run(_joining(scheduler, security, worker, offer))


async def _joining(scheduler: str, security: Security, worker: Callable[[], Nanny], offer: str) -> None:
    """Join as one worker process of one thread, again and again; a line says that, and its `offer`."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, lambda: task.cancelling() or task.cancel())
    pause, said = FIRST_PAUSE, set[str]()
    while True:
        try:
            await _check_versions(scheduler, security)
            async with worker() as nanny:
                _say(f"joined {scheduler} as {nanny.worker_address}: {offer}")
                await nanny.finished()
            pause, said = FIRST_PAUSE, set()
            _say(f"the link to {scheduler} is gone; joining again")
        except RoundweaveError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            if (why := reason(cause := root_of(error))) not in said:
                other = ": are its certificates of another authority?" if isinstance(cause, ssl.SSLError) else ""
                _say(f"{scheduler} cannot be joined ({why}){other}; trying again until it can")
            pause, said = min(2 * pause, LONGEST_PAUSE), said | {why}
        await asyncio.sleep(pause)


async def _check_versions(address: str, security: Security) -> None:
    """Raise `ClusterError` if the scheduler's Dask is another one, and `OSError` if no scheduler answers."""
    arguments = security.get_connection_args("worker")
    async with rpc(address, timeout=ANSWER_SECONDS, connection_args=arguments) as scheduler:
        theirs = (await asyncio.wait_for(scheduler.versions(), 2 * ANSWER_SECONDS))["packages"]
    ours = get_versions()["packages"]
    for name in ("dask", "distributed"):
        if theirs.get(name) != ours[name]:
            raise ClusterError(
                f"{address} has {name} {theirs.get(name)}, and here it is {ours[name]}; "
                "install the same version on both machines"
            )


def memory_of(limit: str) -> int:
    """Return the bytes of a size such as ``8GB`` or of a fraction of this machine's memory.

    Raises `UsageError`.
    """
    try:
        memory: int | None = parse_memory_limit(limit, 1, logger=logging.getLogger(__name__))
    except (ValueError, OverflowError):
        memory = None
    if memory is None or memory < LEAST_MEMORY:
        raise UsageError(
            f"a worker cannot have {limit!r} of memory; give a size such as 8GB, or a fraction as 0.5"
        )
    return memory


def _say(line: str) -> None:
    """Print a line for the user, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {printable(line)}", flush=True)


class Telling(WorkerPlugin):
    """Prints a line when the map of a partition ends in this worker, with its seconds, or fails."""

    name = "roundweave-telling"

    def setup(self, worker: Any) -> None:
        self.began: dict[Any, float] = {}

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Note when a map begins, and print when it has ended."""
        if not (isinstance(key, tuple) and len(key) == 4 and key[0] in ("map", "maps")):
            return
        if finish == "executing":
            self.began[key] = time.monotonic()
        elif finish in ("memory", "error") and (began := self.began.pop(key, None)) is not None:
            kind, _, number, block = key
            at = f"round {number}, block {block}" if kind == "map" else f"map {number}, partition {listed(block)}"
            how = "failed" if finish == "error" else "done"
            _say(f"{at}: {how} in {time.monotonic() - began:.1f} s")


async def dask_setup(worker: Any) -> None:
    """Dask calls this in the worker process before it joins."""
    await worker.plugin_add(Telling())
