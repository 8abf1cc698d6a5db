"""The lease: who is writing a run right now, so that a second writer gets an early, friendly error."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from storage.errors import RunBusy
from storage.rounds.commits import write_atomically

SECONDS = 30.0
"""How long a lease holds without being renewed."""


@dataclass(frozen=True)
class Lease:
    """One writer's claim; `expiry` and `born` (the process's start) are in seconds since the epoch."""

    host: str
    pid: int
    born: float
    token: str
    epoch: int
    expiry: float

    @property
    def fresh(self) -> bool:
        """Whether the writer may still be at work; on this host its process is looked for."""
        if self.host == socket.gethostname() and not _alive(self.pid, self.born):
            return False
        return time.time() < self.expiry


def _alive(pid: int, born: float) -> bool:
    try:
        return bool(abs(psutil.Process(pid).create_time() - born) < 1.0)
    except psutil.NoSuchProcess:
        return False


def read_lease(folder: Path) -> Lease | None:
    """The last claim on the run in this folder, fresh or not; one that cannot be read claims nothing."""
    try:
        return Lease(**json.loads((folder / "lease.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


@contextmanager
def hold_lease(folder: Path, token: str) -> Iterator[Lease]:
    """Claim the run and renew the claim until the end; raises `RunBusy` while another's is fresh."""
    with (folder / "lease.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lease = _claim(folder, token)
    done = threading.Event()
    renewal = threading.Thread(target=_renew, args=(folder, lease, done), name="lease", daemon=True)
    renewal.start()
    try:
        yield lease
    finally:
        done.set()
        renewal.join()
        _extend(folder, lease, expiry=0.0)


def _claim(folder: Path, token: str) -> Lease:
    former = read_lease(folder)
    if former and former.fresh:
        raise RunBusy(
            f"{folder.parent} is being written by process {former.pid} on {former.host}; "
            "wait for it, stop it, or give this run another name"
        )
    pid = os.getpid()
    born = psutil.Process(pid).create_time()
    epoch = former.epoch + 1 if former else 1
    lease = Lease(socket.gethostname(), pid, born, token, epoch, time.time() + SECONDS)
    _write(folder, lease)
    return lease


def _renew(folder: Path, lease: Lease, done: threading.Event) -> None:
    while not done.wait(SECONDS / 4):
        _extend(folder, lease, expiry=time.time() + SECONDS)


def _extend(folder: Path, lease: Lease, expiry: float) -> None:
    held = read_lease(folder)
    if held is None or held.token == lease.token:
        _write(folder, replace(lease, expiry=expiry))


def _write(folder: Path, lease: Lease) -> None:
    write_atomically(folder / "lease.json", json.dumps(asdict(lease)))
