"""A power loss on a real file system: one that is mounted is shut down while it is written, and mounted again."""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundweave.storage.errors import PlaceError
from roundweave.storage.places import local
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.upkeep.verifying.verify import verify

FIELDS = {"model": "logistic", "algorithm": "scaffold", "partitions": 2, "local_steps": 1, "rounds": 8}


SHUTDOWN, LOG_IS_LOST = 0x8004587D, (2).to_bytes(4, "little")
"""The request to ext4 to write nothing more to its device, and its journal not either."""


def called(*line: object) -> None:
    """Run a program of the system; raises where it fails."""
    subprocess.run([str(word) for word in line], check=True, capture_output=True)


def lose_power(folder: Path) -> None:
    """Have a file system be on its device what it is there now; what it has in memory is lost."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, SHUTDOWN, LOG_IS_LOST)
    finally:
        os.close(descriptor)


@pytest.fixture
def mounted(tmp_path: Path, syncs, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A new image and where it is mounted; syncs reach it."""
    monkeypatch.setattr(os, "fsync", syncs[0])
    monkeypatch.setattr(local, "sync_file_system", syncs[1])
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    try:
        called("truncate", "-s", "64M", image)
        called("mkfs.ext4", "-q", "-F", image)
        called("mount", "-o", "loop", image, folder)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no image can be mounted here: {error}")
    yield image, folder
    called("umount", folder)


@pytest.mark.thorough
@pytest.mark.parametrize("fsync", [False, True], ids=["beside", "each round"])
def test_what_was_synced_is_there_after_a_power_loss(train, mounted, tmp_path, monkeypatch, fsync: bool) -> None:
    """Right after the seventh round; without fsync after a sync that began after the fourth."""
    synced, flush = threading.Semaphore(0), local.sync_file_system

    def told(descriptor: int) -> None:
        flush(descriptor)
        synced.release()

    def committed(commit: Commit) -> None:
        if commit.round == 4:
            while synced.acquire(blocking=False):
                pass
            for _ in range(0 if fsync else 2):  # the first may have begun before
                synced.acquire()
            monkeypatch.setattr("roundweave.storage.rounds.store.SYNC_SECONDS", 1e6)
        if commit.round == 7:
            lose_power(mounted[1])

    whole = train(**FIELDS, root=tmp_path / "whole", name="a")
    monkeypatch.setattr(local, "sync_file_system", told)
    monkeypatch.setattr("roundweave.storage.rounds.store.SYNC_SECONDS", 1e6 if fsync else 0.05)
    with pytest.raises(PlaceError):
        train(**FIELDS, root=mounted[1] / "runs", name="a", fsync=fsync, on_commit=committed)
    called("umount", mounted[1])
    called("mount", "-o", "loop", *mounted)
    left = StoredRun(mounted[1] / "runs/a.zarr")
    assert left.done >= (7 if fsync else 4)
    assert verify(left.path).sound or not fsync
    left._store.place.delete("commits/leases")  # of a process that is gone
    again = train(**FIELDS, root=mounted[1] / "runs", name="a", fsync=fsync)
    assert again.digest == whole.digest
    assert verify(again.path).sound
