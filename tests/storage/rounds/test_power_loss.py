"""What a power loss leaves of a run that is synced: every round that was printed.

A disk of which only what was synced survives: the bytes of files, and the names in folders, as of their last sync.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage.rounds.store import RoundStore
from storage.runs.run import Run

Synced = tuple[dict[int, bytes], dict[int, dict[str, int]]]
"""The bytes of files, and the names in folders, by inode."""


@dataclass
class Disk:
    """What was synced so far, and after each sync."""

    stash: Path
    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=dict)
    cuts: list[Synced] = field(default_factory=list)

    def sync(self, descriptor: int) -> None:
        found, name = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(descriptor) as entries:
                self.folders[found.st_ino] = {entry.name: entry.inode() for entry in entries}
        else:
            self.files[found.st_ino] = name.read_bytes()
            # A link keeps its number from being given to another file, which would seem to have these bytes.
            if not (self.stash / str(found.st_ino)).exists():
                os.link(name.readlink(), self.stash / str(found.st_ino))
        self.cuts.append((dict(self.files), dict(self.folders)))

    def left(self, cut: int, folder: Path, where: Path) -> None:
        """Make what is left of a folder after so many syncs; a file that was not synced is there without bytes."""
        files, folders = self.cuts[cut - 1] if cut else ({}, {})

        def restore(inode: int, path: Path) -> None:
            if inode in folders:
                path.mkdir()
                for name, child in folders[inode].items():
                    restore(child, path / name)
            else:
                path.write_bytes(files.get(inode, b""))

        where.mkdir()
        for name, child in folders.get(folder.stat().st_ino, {}).items():
            restore(child, where / name)


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Disk:
    (tmp_path / "stash").mkdir()
    disk = Disk(tmp_path / "stash")
    monkeypatch.setattr(os, "fsync", disk.sync)
    return disk


@pytest.fixture
def base(tmp_path) -> Path:
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


FIELDS = {"model": "logistic", "algorithm": "scaffold", "partitions": 2, "local_steps": 1}


def test_every_printed_round_survives_and_the_run_goes_on_to_the_same_bits(train, disk, base, tmp_path) -> None:
    printed: list[int] = []
    whole = train(
        **FIELDS,
        rounds=4,
        root=base / "new/runs",
        name="a",
        fsync=True,
        on_commit=lambda _: printed.append(len(disk.cuts)),
    )
    assert len(printed) == 4
    for number, cut in enumerate(printed, start=1):
        root = tmp_path / f"left{number}"
        disk.left(cut, base, root)
        left = Run(root / "new/runs/a.zarr")
        assert (left.done, left.lost) == (number, [])
        assert len(left["1.weight"].values) == number + 1
        left._store.place.delete("commits/leases")  # of a process that is gone
        again = train(**FIELDS, rounds=4, root=root / "new/runs", name="a")
        assert (again.digest, again.damaged) == (whole.digest, [])


def test_a_run_is_there_as_a_whole_or_not_at_all(tiny, disk, base, tmp_path, same) -> None:
    """Cut after every sync of its making and of its first round."""
    tiny = type(tiny)(base / "runs")
    store = RoundStore.create(base / "runs/tiny.zarr", tiny.schema, 3, {}, tiny.state(0), fsync=True)
    made = len(disk.cuts)
    store.commit(tiny.write(store, 1))
    for cut in range(len(disk.cuts) + 1):
        root = tmp_path / f"left{cut}"
        disk.left(cut, base, root)
        path = root / "runs/tiny.zarr"
        assert path.exists() or cut < made
        if path.exists():
            left = RoundStore(path)
            newest = left.shelf.newest
            assert same(left.tensors.read_state(newest), tiny.state(newest))
            assert newest == 1 or cut < len(disk.cuts)


def test_what_follows_an_extension_and_a_resumption_survives_too(train, disk, base, tmp_path) -> None:
    """The first rounds were not synced as they were made."""
    train(**FIELDS, rounds=2, root=base / "runs", name="a")
    assert disk.cuts == []
    whole = train(**FIELDS, rounds=3, root=base / "runs", name="a", fsync=True)
    disk.left(len(disk.cuts), base, tmp_path / "left")
    left = Run(tmp_path / "left/runs/a.zarr")
    assert (left.done, left.rounds, left.lost, left.digest) == (3, 3, [], whole.digest)
    assert left.history().equals(whole.history())
