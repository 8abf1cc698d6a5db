"""Which workers reach the store, and a process beside the command that stores where none does.

Each worker is asked to read a mark in the folder of the runs, and to write there. What it can do it offers as
Dask's resources, which decide where the steps of a round run.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlparse

import dask
from distributed import Client, Nanny, Status

from roundweave.storage.errors import ClusterError, RoundweaveError, StoreError
from roundweave.storage.hierarchy.zarr_format import NAME
from roundweave.storage.places.schemes import place_of
from roundweave.storage.values.hashing import bytes_digest
from roundweave.tasks.data.splits.placement import ANYWHERE, Placement
from roundweave.tasks.executors.clusters.connecting import NO_PAGES
from roundweave.tasks.executors.clusters.fork_server import WORKER_ENVIRONMENT, start_method
from roundweave.tasks.executors.clusters.routing import TO_MAP, Routing
from roundweave.tasks.executors.clusters.workers import ANSWER_SECONDS, STORES_ONLY, usable_workers
from roundweave.tasks.rounds.timing import notify

MARK = "roundweave.mark"
"""The file in a folder of runs by which a worker knows that it sees this folder, and not one of the same path."""

MANY = 1000.0
"""How much of a resource a worker has that it never runs out of."""

CONNECT_SECONDS = 10.0
"""The longest time in which a worker must connect to the process that stores."""


@dataclass(frozen=True)
class Mark:
    """What a worker must read at the address of a run, or of a folder of runs, in which it must write besides."""

    address: str
    key: str
    digest: str

    @classmethod
    def at(cls, address: str) -> Mark:
        """The mark at the address of a run that is only read, or of a folder of runs, in which it is made."""
        place = place_of(address)
        if (run := place.read(NAME)) is not None:
            return cls(address, NAME, bytes_digest(run))
        place.make()
        place.create(MARK, secrets.token_hex(16).encode())
        return cls(address, MARK, bytes_digest(place.read(MARK) or b""))

    @property
    def resource(self) -> str:
        """The resource of workers that reach the store. Runs in other folders have another one."""
        return f"roundweave-store-{self.digest[:8]}"

    def unreached(self) -> str:
        """Return why the process that calls this does not reach the store; empty if it does."""
        try:
            place = place_of(self.address)
            content = place.read(self.key)
            if content is None or bytes_digest(content) != self.digest:
                return f"{self.address} is another folder there, or none"
            if self.key == MARK:
                place.make()
        except RoundweaveError as error:
            return str(error)
        return ""

    async def offer(self, dask_worker: Any) -> str:
        """Have the worker that calls this offer to map, and to store where it can; returns why it cannot."""
        why = self.unreached()
        resources = {TO_MAP: MANY, self.resource: 0.0 if why else MANY}
        if resources.items() - dask_worker.state.total_resources.items():
            await dask_worker.set_resources(**resources)
            # Dask looks for tasks that wait for a resource only where a worker's status changes.
            if dask_worker.status == Status.running:
                dask_worker.status = Status.paused
                dask_worker.status = Status.running
        return why


class Reach:
    """Which workers of a client reach the store at an address, and a process that stores where none does.

    Without an address all do. `routing` follows: tasks are apart once one does not, or where examples stay at
    places.
    """

    def __init__(self, client: Client, address: str, placement: Placement = ANYWHERE) -> None:
        self.client = client
        self._mark = Mark.at(address) if address else None
        self.routing = Routing(placement, self._mark.resource if self._mark else "", apart=placement.stays)
        self._unreached: dict[str, str] = {}
        self._storing: StoringProcess | None = None

    @property
    def ready(self) -> bool:
        """Whether something stores for workers already; a process that is to do so may not have begun."""
        return self._storing is None or self._storing.ready

    def ask(self, workers: Collection[str]) -> None:
        """Ask workers whether they reach the store, unless that is known, and have them offer what they can."""
        if self._mark is None:
            return
        self._unreached = {worker: why for worker, why in self._unreached.items() if worker in workers}
        new, answers = [worker for worker in workers if worker not in self._unreached], dict[str, str]()
        how: dict[str, Any] = {"on_error": "ignore", "callback_timeout": ANSWER_SECONDS}
        try:
            answers = self.client.run(self._mark.offer, workers=new, **how)
        except TimeoutError:  # a worker that does not answer will be given up
            notify(f"not all of {len(new)} workers have answered within {ANSWER_SECONDS} s")
        self._unreached |= answers
        self.routing = replace(self.routing, apart=self.routing.apart or any(answers.values()))
        if self._storing is None and self._unreached and all(self._unreached.values()):
            notify("no worker reaches the store: a process of this machine stores for them")
            self._storing = StoringProcess(self.client, self._mark.resource)
        for worker, why in answers.items() if self._storing is None else ():
            if why:
                notify(f"worker {worker} does not reach the store ({why.partition(';')[0]}): others store for it")

    def ask_again(self, error: StoreError) -> None:
        """Ask all workers again whether they reach the store, as a step failed there; raises its error if so."""
        before, self._unreached = self._unreached, {}
        self.ask(usable_workers(self.client))
        if not any(why and not before.get(worker) for worker, why in self._unreached.items()):
            raise error

    def await_storing(self) -> None:
        """Wait for the process that stores for workers, if there is to be one, and check that they reach it."""
        if self._storing is not None:
            self._storing.check_reached(list(self._unreached))

    def end(self) -> None:
        """End the process that stores for workers, if there is one."""
        if self._storing is not None:
            self._storing.end()
            self._storing = None


class StoringProcess:
    """A process of this machine that joins a cluster to read and write the store, and maps nothing.

    It begins beside the work that needs no store.
    """

    def __init__(self, client: Client, resource: str) -> None:
        self.client = client
        address, resources = client.scheduler_info(n_workers=0)["address"], {resource: MANY, STORES_ONLY: 1.0}
        self._nanny: Future[Nanny] = ThreadPoolExecutor(1).submit(client.sync, self._begun, address, resources)

    async def _begun(self, address: str, resources: dict[str, float]) -> Nanny:
        how: dict[str, Any] = {"env": WORKER_ENVIRONMENT, "memory_limit": 0, "security": self.client.security}
        how |= {"preload": ["roundweave.tasks.executors.clusters.ready"], "silence_logs": logging.CRITICAL}
        settings = NO_PAGES | {
            "distributed.worker.multiprocessing-method": start_method(),
            "distributed.logging.distributed": "critical",
        }
        logging.getLogger("distributed.nanny").setLevel(logging.CRITICAL)  # it tells of its end
        with dask.config.set(settings):
            nanny: Nanny = await Nanny(address, nthreads=1, resources=resources, **how)
        return nanny

    @property
    def ready(self) -> bool:
        """Whether the process has joined."""
        return self._nanny.done()

    def check_reached(self, workers: list[str]) -> None:
        """Wait for the process. Raises `ClusterError` if it does not begin, or a worker cannot connect to it."""
        if error := self._nanny.exception():
            raise ClusterError(
                f"the process that stores for the workers did not begin ({error.__cause__ or error}); is the "
                'scheduler still there, and does a script train under `if __name__ == "__main__":`?'
            ) from error
        place = str(self._nanny.result().worker_address)
        answers = self.client.run(partial(_connect, place), workers=workers, on_error="return")
        for worker, why in answers.items():
            if why:
                raise ClusterError(
                    f"no worker reaches the runs, so this machine stores them, and worker {worker} cannot connect "
                    f"to it at {place} ({why}); open that to the cluster, or start a worker that reaches the runs"
                )

    def end(self) -> None:
        """End the process, if it began."""
        if self._nanny.exception() is None:
            self.client.sync(self._nanny.result().close)


def _connect(address: str) -> str:
    """Return why the process that calls this cannot connect to an address; empty if it can."""
    try:
        at = urlparse(address)
        socket.create_connection((at.hostname, at.port), CONNECT_SECONDS).close()
    except OSError as error:
        return str(error)
    return ""
