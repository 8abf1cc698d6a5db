"""The lease says which process is writing a run, so that a second writer gets a clear error early.

Each writer creates a claim of its own with a new number, its epoch; the claim with the highest epoch is the lease.
Former claims stay, so that a slow writer cannot claim an epoch that is over. Each claim ends in a digest of its
content, and one that was changed counts as no claim.

Whether another writer is still at work cannot be known for sure: it may be suspended, and go on later. So a writer
works on a `fenced` place, in which it changes nothing once there is a claim of a later epoch.
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
"""How many seconds a lease is valid without being renewed."""


FAR = 1e11
"""A time, in seconds since the epoch, that no clock shows, so that later ones are refused."""


LEASES = "commits/leases"
"""The folder of the claims, each named after its epoch."""


@dataclass(frozen=True)
class Lease:
    """The claim of one writer.

    `machine` is that of `this_machine`, `born` the start of the writer's process in seconds since the machine's.
    `token` identifies the writer in commits. The claim was last `renewed` and is valid until `expiry`, both in
    seconds since 1970 by the writer's clock; `expiry` is 0 where the writer has ended. `failure` is the error that
    ended it; None where it succeeded, was killed or is at work. `rounds` is how many rounds it wants the run to
    have.
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
        """Whether the writer is known to work no more: it said so, or its process on this machine is gone."""
        return self.expiry == 0 or (self.machine == this_machine() and not _alive(self.pid, self.born))

    @property
    def fresh(self) -> bool:
        """Whether the writer may still be at work, if its clock and this one agree."""
        return not self.ended and time.time() < self.expiry


@cache
def this_machine() -> str:
    """Identifies the set of processes among which a process number means one of them.

    On Linux it is a boot of the machine with a PID namespace, since two containers may have one host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _alive(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        # A zombie has ended, and only waits for its parent to collect its exit status.
        return abs(_born(process) - born) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return bool(psutil.pid_exists(pid))  # processes of other users may be hidden
    except (ValueError, OverflowError):
        return False


def _born(process: psutil.Process) -> float:
    """The seconds from the machine's start to that of a process, which do not change when the clock is set."""
    return float(process.create_time() - psutil.boot_time())


def read_lease(place: Place) -> Lease | None:
    """The claim with the highest epoch, fresh or not; None where there is none or it is damaged."""
    return read_claim(place, _last_epoch(place))


def read_claim(place: Place, epoch: int) -> Lease | None:
    """The claim of an epoch; None where there is none or it is damaged."""
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
    """The place for the writer with this epoch: its changes raise `WriterFenced` once there is a later claim."""
    return place.fenced(partial(_check_epoch, place, epoch))


def _check_epoch(place: Place, epoch: int) -> None:
    if place.has(_key(epoch + 1)):  # no epoch is left out
        later = read_lease(place)
        who = f"process {later.pid} on {later.host}" if later else "another process"
        raise WriterFenced(f"{place} was taken over by {who}; this writer stops, and what it committed stays")


def _is_valid(place: Place, lease: Lease) -> bool:
    """Whether a claim has not expired, by the clock of the place, or by this one where only reading is allowed."""
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
