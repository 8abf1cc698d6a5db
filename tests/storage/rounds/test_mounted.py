"""A power loss on a real file system: an image is copied while it is mounted and written, and the copy mounted."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.places import local
from storage.rounds import syncing
from storage.runs.run import Run
from storage.upkeep.verifying.verify import verify

FIELDS = {"model": "logistic", "algorithm": "scaffold", "partitions": 2, "local_steps": 1, "rounds": 8}


def called(*line: object) -> None:
    """Run a program of the system; raises where it fails."""
    subprocess.run([str(word) for word in line], check=True, capture_output=True)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[list[Path]]:
    """A new image and where it is mounted, and the same of what is added."""
    places = [tmp_path / "disk.img", tmp_path / "disk"]
    places[1].mkdir()
    try:
        called("truncate", "-s", "64M", places[0])
        called("mkfs.ext4", "-q", "-F", places[0])
        called("mount", "-o", "loop", *places)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no image can be mounted here: {error}")
    yield places
    for folder in places[1::2]:
        called("umount", folder)


@pytest.mark.parametrize("fsync", [False, True], ids=["beside", "each round"])
def test_what_was_synced_is_there_after_a_power_loss(train, mounted, tmp_path, monkeypatch, fsync: bool) -> None:
    """Copied right after the seventh round; without fsync after a sync that began after the fourth."""
    synced, flush = threading.Semaphore(0), local.sync_file_system

    def told(descriptor: int) -> None:
        flush(descriptor)
        synced.release()

    def committed(commit: syncing.Commit) -> None:
        if commit.round == 4:
            while synced.acquire(blocking=False):
                pass
            for _ in range(0 if fsync else 2):  # the first may have begun before
                synced.acquire()
            monkeypatch.setattr(syncing, "SECONDS", 1e6)
        if commit.round == 7:
            shutil.copyfile(mounted[0], tmp_path / "left.img")

    monkeypatch.setattr(local, "sync_file_system", told)
    monkeypatch.setattr(syncing, "SECONDS", 1e6 if fsync else 0.05)
    whole = train(**FIELDS, root=mounted[1] / "runs", name="a", fsync=fsync, on_commit=committed)
    (tmp_path / "left").mkdir()
    called("mount", "-o", "loop", tmp_path / "left.img", tmp_path / "left")
    mounted += [tmp_path / "left.img", tmp_path / "left"]
    left = Run(tmp_path / "left/runs/a.zarr")
    assert left.done >= (7 if fsync else 4)
    left._store.place.delete("commits/leases")  # of a process that is gone
    again = train(**FIELDS, root=tmp_path / "left/runs", name="a", fsync=fsync)
    assert again.digest == whole.digest
    assert verify(again.path).sound
