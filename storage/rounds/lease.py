"""The lease names the process that writes a run, so that a second writer gets a clear error early.

Each writer creates a claim with a new number, its epoch. The claim with the highest epoch is the lease. Former
claims stay, so that a slow writer cannot claim a past epoch. Each claim ends in a digest of its content, and a
changed claim counts as none.

No process can know for sure whether another writer is at work: that writer may be suspended and go on later. So a
writer works on a `fenced` place, in which it changes nothing once there is a claim of a later epoch.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field

from roundweave.storage.errors import PlaceError, RoundweaveError, RunBusy, WriterFenced
from roundweave.storage.parsing import Count, Round, Time, numbered
from roundweave.storage.places.base import Place
from roundweave.storage.values.digests import read_sealed, sealed

SECONDS = 30.0
"""The seconds for which a lease is valid after its last renewal."""


FAR = 1e11
"""A time, in seconds since the epoch, that no clock shows. Later times are refused."""


LEASES = "commits/leases"
"""The folder of the claims, each named after its epoch."""


@dataclass(frozen=True)
class Lease:
    """The claim of one writer.

    `machine` is that of `this_machine`. `born` is the start of the writer's process, in seconds since the
    machine's start. `token` identifies the writer in commits. The claim was last `renewed` and is valid until
    `expiry`, both in seconds since 1970 by the writer's clock. `expiry` is 0 if the writer has ended. `failure` is
    the error that ended the writer; None if it succeeded, was killed or is at work. `rounds` is the number of
    rounds that it wants the run to have.
    """

    host: str
    machine: str
    pid: Annotated[int, Field(ge=0, lt=1 << 31)]
    born: float
    token: str
    epoch: Count
    renewed: Time
    expiry: Annotated[float, Field(lt=FAR)]
    failure: str | None = None
    rounds: Round = 0

    @property
    def ended(self) -> bool:
        """Whether the writer is known to have ended: it said so, or its process on this machine is gone."""
        return self.expiry == 0 or (self.machine == this_machine() and not _alive(self.pid, self.born))

    @property
    def fresh(self) -> bool:
        """Whether the writer may still be at work, if its clock and this one agree."""
        return not self.ended and time.time() < self.expiry


@cache
def this_machine() -> str:
    """Return an identity of the processes among which a process number means one process.

    On Linux it is a boot of the machine with a PID namespace, because two containers may have one host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _alive(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        # A zombie has ended: only its exit status is left.
        return abs(_born(process) - born) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return bool(psutil.pid_exists(pid))  # processes of other users may be hidden
    except (ValueError, OverflowError):
        return False


def _born(process: psutil.Process) -> float:
    """Return the seconds from the machine's start to that of a process. Setting the clock does not change them."""
    return float(process.create_time() - psutil.boot_time())


def read_lease(place: Place) -> Lease | None:
    """Return the claim with the highest epoch, fresh or not; None if there is none or it is damaged."""
    return read_claim(place, _last_epoch(place))


def read_claim(place: Place, epoch: int) -> Lease | None:
    """Return the claim of an epoch; None if there is none or it is damaged."""
    lease = read_sealed(Lease, place, _key(epoch))
    printable = lease is not None and (lease.host + lease.machine + lease.token).isprintable()
    return lease if lease and lease.epoch == epoch and printable else None


def check_at_rest(place: Place, remedy: str = "wait for it or stop it") -> None:
    """Raise `RunBusy` while a writer of the run at this place may be at work."""
    lease = read_lease(place)
    if lease and not lease.ended and _is_valid(place, lease):
        raise RunBusy(f"{place} is being written by process {lease.pid} on {lease.host}; {remedy}")


@contextmanager
def hold_lease(place: Place, token: str, rounds: int = 0, failure: str | None = None) -> Iterator[Lease]:
    """Claim the run, and renew the claim in a thread. Raises `RunBusy` while another claim is fresh.

    A `RoundweaveError` that ends the context is recorded in the claim as `failure`. It belongs to the claim,
    because the failure of a superseded writer says nothing about the run. `rounds` is the number of rounds that
    the run is to have. A writer that only prunes passes on `rounds` and `failure` of the former claim.
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
        with suppress(PlaceError):  # the run itself fails on a full disk, and the claim expires anyway
            _write(place, replace(lease, expiry=0.0, failure=failure))


def _claim(place: Place, token: str, rounds: int) -> Lease:
    pid = os.getpid()
    born = _born(psutil.Process(pid))
    while True:
        epoch = _last_epoch(place) + 1
        check_at_rest(place, "wait for it, stop it, or give this run another name")
        now, host = time.time(), socket.gethostname()
        lease = Lease(host, this_machine(), pid, born, token, epoch, now, now + SECONDS, rounds=rounds)
        if place.create(_key(epoch), sealed(lease), durable=True):
            return lease


def _renew(place: Place, lease: Lease, done: threading.Event) -> None:
    while not done.wait(SECONDS / 4):
        with suppress(PlaceError):  # a disk that cannot be written will fail the run's own writes
            now = time.time()
            _write(place, replace(lease, renewed=now, expiry=now + SECONDS))


def fenced(place: Place, epoch: int) -> Place:
    """Return the place for the writer with this epoch. After a later claim, its changes raise `WriterFenced`."""
    return place.fenced(partial(_check_epoch, place, epoch))


def _check_epoch(place: Place, epoch: int) -> None:
    if place.has(_key(epoch + 1)):  # epochs have no gaps
        later = read_lease(place)
        who = f"process {later.pid} on {later.host}" if later else "another process"
        raise WriterFenced(f"{place} was taken over by {who}; this writer stops, and what it committed stays")


def _is_valid(place: Place, lease: Lease) -> bool:
    """Tell whether a claim is valid, by the place's clock, or by this one if the place is read-only."""
    try:
        age = place.age(_key(lease.epoch))
    except PlaceError:
        return time.time() < lease.expiry
    return age is None or age < lease.expiry - lease.renewed


def _write(place: Place, lease: Lease) -> None:
    place.write(_key(lease.epoch), sealed(lease), durable=True)


def _key(epoch: int) -> str:
    return f"{LEASES}/{epoch}.json"


def _last_epoch(place: Place) -> int:
    return max(numbered(place.names(LEASES)), default=0)
