"""The lease says which process is writing a run, so that a second writer gets a clear error early.

Each writer creates a claim of its own with a new number, its epoch; the claim with the highest epoch is the lease.
Former claims stay, so that a slow writer cannot claim an epoch that is over. Each claim ends in a digest of its
content, and one that was changed counts as no claim.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated

import psutil
from pydantic import Field

from storage.errors import PlaceError, RoundweaveError, RunBusy, StoreError
from storage.parsing import Count, Round, numbered
from storage.places.base import Place
from storage.values.digests import sealed, unsealed

SECONDS = 30.0
"""How many seconds a lease is valid without being renewed."""


FAR = 1e11
"""A time, in seconds since the epoch, that no clock shows, so that later ones are refused."""


LARGEST = 1 << 20
"""The most bytes of a claim. The text of a failure may be long."""


LEASES = "commits/leases"
"""The folder of the claims, each named after its epoch."""


@dataclass(frozen=True)
class Lease:
    """The claim of one writer.

    `born`, the start of its process, and `expiry` are in seconds since the epoch. `token` identifies the writer in
    commits. `failure` is the error that ended the writer; None where it succeeded, was killed or is at work.
    `rounds` is how many rounds it wants the run to have.
    """

    host: str
    pid: Annotated[int, Field(ge=0, lt=1 << 31)]
    born: float
    token: str
    epoch: Count
    expiry: Annotated[float, Field(lt=FAR)]
    failure: str | None = None
    rounds: Round = 0

    @property
    def fresh(self) -> bool:
        """Whether the writer may still be at work. For a writer on this host, its process is checked as well."""
        if self.host == socket.gethostname() and not _alive(self.pid, self.born):
            return False
        return time.time() < self.expiry


def _alive(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        # A zombie has ended, and only waits for its parent to collect its exit status.
        return bool(abs(process.create_time() - born) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False


def read_lease(place: Place) -> Lease | None:
    """The claim with the highest epoch, fresh or not; None where there is none or it is damaged."""
    return read_claim(place, _last_epoch(place))


def read_claim(place: Place, epoch: int) -> Lease | None:
    """The claim of an epoch; None where there is none or it is damaged."""
    try:
        content = place.read(_key(epoch), most=LARGEST)
        lease = None if content is None else unsealed(Lease, content)
    except PlaceError:
        raise
    except (ValueError, StoreError):
        return None
    return lease if lease and lease.epoch == epoch and (lease.host + lease.token).isprintable() else None


def check_at_rest(place: Place, remedy: str = "wait for it or stop it") -> None:
    """Raise `RunBusy` while a writer of the run at this place may be at work."""
    lease = read_lease(place)
    if lease and lease.fresh:
        raise RunBusy(f"{place} is being written by process {lease.pid} on {lease.host}; {remedy}")


@contextmanager
def hold_lease(place: Place, token: str, rounds: int = 0, failure: str | None = None) -> Iterator[Lease]:
    """A context that claims the run and renews the claim in a thread; raises `RunBusy` while another is fresh.

    A `RoundweaveError` that ends the context is recorded in the claim as `failure`. It belongs to the claim, since
    the failure of a writer that was superseded says nothing about the run. `rounds` is how many rounds the run is
    to have. Whoever only prunes passes on `rounds` and `failure` of the former claim.
    """
    lease = _claim(place, token, rounds)
    done = threading.Event()
    renewal = threading.Thread(target=_renew, args=(place, lease, done), name="lease", daemon=True)
    renewal.start()
    try:
        yield lease
    except RoundweaveError as error:
        failure = str(error)
        raise
    finally:
        done.set()
        renewal.join()
        with suppress(PlaceError):  # the run itself failed on a full disk, and the claim expires by itself
            _write(place, replace(lease, expiry=0.0, failure=failure))


def _claim(place: Place, token: str, rounds: int) -> Lease:
    pid = os.getpid()
    born = psutil.Process(pid).create_time()
    while True:
        epoch = _last_epoch(place) + 1
        check_at_rest(place, "wait for it, stop it, or give this run another name")
        expiry = time.time() + SECONDS
        lease = Lease(socket.gethostname(), pid, born, token, epoch, expiry, rounds=rounds)
        if place.create(_key(epoch), sealed(lease), durable=True):
            return lease


def _renew(place: Place, lease: Lease, done: threading.Event) -> None:
    while not done.wait(SECONDS / 4):
        with suppress(PlaceError):  # a disk that cannot be written will fail the run's own writes
            _write(place, replace(lease, expiry=time.time() + SECONDS))


def _write(place: Place, lease: Lease) -> None:
    place.write(_key(lease.epoch), sealed(lease), durable=True)


def _key(epoch: int) -> str:
    return f"{LEASES}/{epoch}.json"


def _last_epoch(place: Place) -> int:
    return max(numbered(place.names(LEASES)), default=0)
