"""The lease: who is writing a run right now, so that a second writer gets an early, friendly error.

Each writer has a claim of its own, numbered by its epoch and created exclusively; the last one counts. Former ones
stay, or a writer that looked long ago could claim an epoch that has passed. Each ends in the digest of what it
says: one that was changed claims nothing.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import psutil
from pydantic import Field, TypeAdapter

from storage.errors import PlaceError, RoundweaveError, RunBusy, StoreError
from storage.parsing import Count, Round, numbered, validated
from storage.places.base import Place
from storage.values.digests import json_digest

SECONDS = 30.0
"""How long a lease holds without being renewed."""


FAR = 1e11
"""Seconds since the epoch that no clock shows."""


LARGEST = 1 << 20
"""Bytes of a claim; the reason of a failure may be long."""


LEASES = "commits/leases"
"""Where the claims are, by epoch."""


@dataclass(frozen=True)
class Lease:
    """One writer's claim; `expiry` and `born` (the process's start) are in seconds since the epoch.

    `failure` is why the writer ended, None where it went on to the end or was killed. `rounds` is how many the
    run is to have.
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
        """Whether the writer may still be at work; on this host its process is looked for."""
        if self.host == socket.gethostname() and not _alive(self.pid, self.born):
            return False
        return time.time() < self.expiry


CLAIM = TypeAdapter(Lease)


def _alive(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        # A zombie has ended, and only its parent has not asked how.
        return bool(abs(process.create_time() - born) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False


def read_lease(place: Place) -> Lease | None:
    """The last claim on the run at this place, fresh or not; one that was not written so claims nothing."""
    return read_claim(place, _last_epoch(place))


def read_claim(place: Place, epoch: int) -> Lease | None:
    """The claim of an epoch; None where there is none, or none that a writer wrote."""
    try:
        content = place.read(_key(epoch), most=LARGEST)
        return None if content is None else _parsed(bytes(content), epoch)
    except PlaceError:
        raise
    except (ValueError, StoreError):
        return None


def _parsed(content: bytes, epoch: int) -> Lease:
    """The claim; raises `ValueError` for what no writer claims."""
    lease = validated(CLAIM, content)
    if not (lease.host.isprintable() and lease.token.isprintable()):
        raise ValueError("it is more than a line")
    if lease.epoch != epoch or content != lease_content(lease):
        raise ValueError("it is not what was written for this epoch")
    return lease


def check_at_rest(place: Place, remedy: str = "wait for it or stop it") -> None:
    """Raise `RunBusy` while the run at this place is written."""
    lease = read_lease(place)
    if lease and lease.fresh:
        raise RunBusy(f"{place} is being written by process {lease.pid} on {lease.host}; {remedy}")


@contextmanager
def hold_lease(place: Place, token: str, rounds: int = 0, failure: str | None = None) -> Iterator[Lease]:
    """Claim the run and renew the claim until the end; raises `RunBusy` while another's is fresh.

    A failure is kept with the claim: that of a writer whom another superseded says nothing of the run. `rounds` is
    how many the run is to have; one who adds none gives those of the former claim, and its `failure`.
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
        with suppress(PlaceError):  # of a full disk the run has told; the claim ends by itself
            _write(place, replace(lease, expiry=0.0, failure=failure))


def _claim(place: Place, token: str, rounds: int) -> Lease:
    pid = os.getpid()
    born = psutil.Process(pid).create_time()
    while True:
        epoch = _last_epoch(place) + 1
        check_at_rest(place, "wait for it, stop it, or give this run another name")
        expiry = time.time() + SECONDS
        lease = Lease(socket.gethostname(), pid, born, token, epoch, expiry, rounds=rounds)
        if place.create(_key(epoch), lease_content(lease), durable=True):
            return lease


def _renew(place: Place, lease: Lease, done: threading.Event) -> None:
    while not done.wait(SECONDS / 4):
        with suppress(PlaceError):  # what cannot be written fails the run where it must be
            _write(place, replace(lease, expiry=time.time() + SECONDS))


def _write(place: Place, lease: Lease) -> None:
    place.write(_key(lease.epoch), lease_content(lease), durable=True)


def lease_content(lease: Lease) -> bytes:
    """A claim as it is stored, with the digest of what it says."""
    said = asdict(lease)
    return json.dumps(said | {"digest": json_digest(said)}).encode()


def _key(epoch: int) -> str:
    return f"{LEASES}/{epoch}.json"


def _last_epoch(place: Place) -> int:
    return max(numbered(place.names(LEASES)), default=0)
