"""What a power loss leaves: of a run that is synced every round that was printed, else those of the last sync.

A disk of which only what was synced survives: the bytes of files, and the names in folders, as of their last sync.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import PlaceError
from roundweave.storage.places import local
from roundweave.storage.places.local import LocalPlace, sync_and_close
from roundweave.storage.rounds import packs
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.upkeep.verifying.verify import verify
from tests.storage.conftest import contents, thorough
from tests.storage.upkeep.dying import bury

Synced = tuple[dict[int, bytes], dict[int, dict[str, int]]]
"""The bytes of files, and the names in folders, by inode."""


@dataclass
class Disk:
    """What was synced so far of a folder, and after each sync; `stash` and what is left lie beside it."""

    base: Path
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

    def flush(self, descriptor: int) -> None:
        """Sync all that is there."""
        for _, _, names, folder in os.fwalk(dir_fd=descriptor):
            for name in names:
                with suppress(FileNotFoundError):  # what a writer renames meanwhile
                    sync_and_close(os.open(name, os.O_RDONLY, dir_fd=folder))
            os.fsync(folder)

    def left(self, cut: int | None = None) -> Path:
        """Make what is left after so many syncs, or all; a file that was not synced is there without bytes."""
        cut = len(self.cuts) if cut is None else cut
        files, folders = self.cuts[cut - 1] if cut else ({}, {})

        def restore(inode: int, path: Path) -> None:
            if inode in folders:
                path.mkdir()
                for name, child in folders[inode].items():
                    restore(child, path / name)
            else:
                path.write_bytes(files.get(inode, b""))

        (where := self._new()).mkdir()
        for name, child in folders.get(self.base.stat().st_ino, {}).items():
            restore(child, where / name)
        return where

    def named(self) -> Path:
        """Make what is left where all names are as they are now, and bytes as they were synced."""
        return Path(shutil.copytree(self.base, self._new(), copy_function=self._copy))

    def _new(self) -> Path:
        return self.base.parent / f"left{len([*self.base.parent.iterdir()])}"

    def _copy(self, path: str, new: str) -> None:
        Path(new).write_bytes(self.files.get(Path(path).stat().st_ino, b""))


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Disk:
    disk = Disk(tmp_path / "base", tmp_path / "stash")
    disk.base.mkdir(), disk.stash.mkdir()
    monkeypatch.setattr(os, "fsync", disk.sync)
    monkeypatch.setattr(local, "sync_file_system", disk.flush)
    return disk


FIELDS = {"model": "logistic", "algorithm": "scaffold", "partitions": 2, "local_steps": 1}


def goes_on(train, path: Path, whole: Run, rounds: int, damaged: Sequence[int] = ()) -> None:
    """The run that is left goes on to the bits of the whole one."""
    bury(path)
    again = train(**FIELDS, rounds=rounds, root=path.parent, name="a")
    assert (again.digest, again.damaged) == (whole.digest, [*damaged])
    assert verify(again.path).sound


def test_every_printed_round_survives_and_the_run_goes_on_to_the_same_bits(train, disk) -> None:
    printed: list[int] = []
    place = {"root": disk.base / "new/runs", "name": "a", "fsync": True}
    whole = train(**FIELDS, rounds=3, **place, on_commit=lambda _: printed.append(len(disk.cuts)))
    for number, cut in enumerate([*printed, len(disk.cuts)], start=1):
        left = Run(disk.left(cut) / "new/runs/a.zarr")
        assert (left.done, left.lost) == (min(number, 3), [])
        assert len(left["1.weight"].values) == left.done + 1
        goes_on(train, left.path, whole, 3)


@pytest.mark.thorough
def test_a_run_is_there_as_a_whole_or_not_at_all(tiny, disk, same) -> None:
    """Cut after every sync of its making and of its first round."""
    tiny = type(tiny)(disk.base / "runs")
    store = RoundStore.create(tiny.folder / "tiny.zarr", tiny.schema, 3, {}, tiny.state(0), fsync=True)
    made = len(disk.cuts)
    store.commit(tiny.write(store, 1))
    # Every third while it is made: each array is made as the ones before.
    for cut in [*range(0, made, 3), *range(made, len(disk.cuts) + 1)]:
        path = disk.left(cut) / "runs/tiny.zarr"
        assert path.exists() or cut < made
        if path.exists():
            left = RoundStore(path)
            newest = left.newest
            assert same(left.tensors.read_state(newest), tiny.state(newest))
            assert newest == 1 or cut < len(disk.cuts)


@pytest.mark.thorough
def test_what_follows_an_extension_and_a_resumption_survives_too(train, disk, monkeypatch) -> None:
    """The first rounds were not synced as they were made."""
    with monkeypatch.context() as patch:
        patch.setattr(local, "sync_file_system", lambda descriptor: None)
        train(**FIELDS, rounds=2, root=disk.base / "runs", name="a")
    assert Run(disk.left() / "runs/a.zarr").done == 0
    whole = train(**FIELDS, rounds=3, root=disk.base / "runs", name="a", fsync=True)
    left = Run(disk.left() / "runs/a.zarr")
    assert (left.done, left.rounds, left.lost, left.digest) == (3, 3, [], whole.digest)
    assert left.history().equals(whole.history())


def test_what_was_synced_beside_the_rounds_survives_and_the_run_goes_on_alike(train, disk, monkeypatch) -> None:
    """The second round waits for a sync that begins after it; of the third nothing is synced."""
    flushed = threading.Semaphore(0)

    def flush(descriptor: int) -> None:
        disk.flush(descriptor)
        flushed.release()

    def committed(commit: Commit) -> None:
        if commit.round == 2:
            while flushed.acquire(blocking=False):
                pass
            # One may have begun before this round was there.
            flushed.acquire()
            flushed.acquire()
            monkeypatch.setattr(local, "sync_file_system", lambda descriptor: None)

    monkeypatch.setattr(local, "sync_file_system", flush)
    monkeypatch.setattr("roundweave.storage.rounds.store.SYNC_SECONDS", 0.01)
    whole = train(**FIELDS, rounds=3, root=disk.base / "runs", name="a", on_commit=committed)
    left = Run(disk.left() / "runs/a.zarr")
    assert (whole.done, left.done) == (3, 2)
    goes_on(train, left.path, whole, 3)


def test_what_is_left_without_bytes_of_the_first_rounds_is_made_anew(train, disk, monkeypatch) -> None:
    """Where nothing was synced since the run was made, of which all names are there."""
    with monkeypatch.context() as patch:
        patch.setattr(local, "sync_file_system", lambda descriptor: None)
        whole = train(**FIELDS, rounds=2, root=disk.base / "runs", name="a")
    left = Run(disk.named() / "runs/a.zarr")
    assert left.done == 0
    goes_on(train, left.path, whole, 2, damaged=(1, 2))


@pytest.mark.thorough
def test_a_power_loss_while_records_are_packed_loses_none(tiny, disk, monkeypatch) -> None:
    """Cut after each sync, where deleted names are gone only once their folder was synced, and where at once."""
    monkeypatch.setattr(packs, "ROUNDS", 2)
    tiny = type(tiny)(disk.base / "runs")
    store = tiny.train(tiny.create(rounds=5), 5)
    disk.flush(os.open(disk.base, os.O_RDONLY))
    before, delete = len(disk.cuts), LocalPlace.delete_names
    deleted, roots = [], []

    def delete_names(place: LocalPlace, prefix: str, names: Sequence[str]) -> None:
        deleted.append(len(disk.cuts))
        delete(place, prefix, names)
        roots.append(disk.named())

    monkeypatch.setattr(LocalPlace, "delete_names", delete_names)
    store.log.pack(4)
    assert len(deleted) == 2 and before < deleted[0] < deleted[1]
    for root in [*map(disk.left, range(before, len(disk.cuts) + 1)), *roots]:
        left = Run(root / "runs/tiny.zarr")
        assert (left.done, left.lost, verify(left.path).findings) == (5, [], ())
        again = RoundStore(left.path)
        assert recover(again) == (5, [])
        again.log.pack(4)
        packed = {name for name in again.place.names("commits") if name[0].isdigit()}
        assert packed == {"0-1.jsonl", "2-3.jsonl", "4.json", "5.json"}


@pytest.mark.parametrize("kept", ["last:1", *thorough("every:3", "recompute:4")])
def test_a_round_goes_only_once_a_later_one_to_go_on_from_is_synced(train, monkeypatch, kept) -> None:
    """The order of what a place is asked for, of a run that prunes after each round and is synced now and then."""
    told: list[tuple[str, str]] = []

    def recorded(name: str) -> None:
        function = getattr(LocalPlace, name)

        def call(place: LocalPlace, *rest: Any, **options: object) -> object:
            told.append((name, "".join(rest[:1])))
            given = function(place, *rest, **options)
            told.append((f"{name} is done", "".join(rest[:1])))
            return given

        monkeypatch.setattr(LocalPlace, name, call)

    for name in ("create", "stream", "delete", "flush"):
        recorded(name)
    monkeypatch.setattr("roundweave.storage.rounds.store.SYNC_SECONDS", 0.03)
    train(**FIELDS, rounds=30, name="a", keep=kept, evaluate_every=30)
    newest = begun = synced = 0
    gone = []
    for name, key in told:
        if name == "create is done" and (parts := re.fullmatch(r"commits/(\d+)\.json", key)):
            newest = int(parts[1])
        elif name == "flush":
            begun = newest
        elif name == "flush is done":
            synced = begun
        elif name == "delete" and "/c/" in key:
            gone.append(int(key.split("/c/")[1].split("/")[0]))
            assert gone[-1] < synced
    assert gone


TORN = ["params/fc.weight/c/3/0/0", "updates/extras/control/bfloat16/c/3/0/0", "carry/variate/float32/c/3/1/0"]
TORN += ["memory/velocity/scale/c/3", "commits/3.json"]


@pytest.mark.parametrize("torn", ["updates/float32/c/3/1/0", *thorough(*TORN)])
def test_a_round_of_which_a_file_was_cut_short_is_done_again_with_those_after_it(tiny, flip, torn) -> None:
    """All else survived: the newest round alone says nothing of the others."""
    store = tiny.train(tiny.create(rounds=5), 5)
    whole = contents(store.place)
    for left in [0] if torn.startswith("commits") else [0, len(whole[torn]) - 1]:
        os.truncate(store.path / torn, left)
        os.truncate(store.path / "updates/buffers/float32/c/5/0/0", left // 2)
        opened = RoundStore(store.path)
        assert recover(opened) == (2, [3, 4, 5])
        assert not verify(store.path).findings
        for round in (3, 4, 5):
            opened.commit(tiny.write(opened, round))
        opened.show()
        assert verify(store.path).sound
        assert {key: bytes(store.place.read(key)) for key in whole} == whole
        assert recover(RoundStore(store.path)) == (5, [])
    flip(store.path / "updates/float32/c/3/1/0")  # as a power loss does not leave it: told of, and kept as it is
    assert recover(RoundStore(store.path)) == (5, [])
    assert [found.path for found in verify(store.path).findings] == ["updates/float32/c/3/1/0"]


def test_what_was_cut_short_and_is_of_no_round_does_not_end_one(tiny) -> None:
    """A state that an attempt stored and the next one does not, and one that was pruned."""
    store = tiny.train(tiny.create(rounds=5), 4)
    prune(store, Keep.of("last:2"), store.log.read(4))
    for key in ("params/fc.weight/c/2/0/0", "params/fc.weight/c/5/0/0"):
        store.place.write(key, b"")
    assert recover(RoundStore(store.path)) == (4, [])
    assert store.place.has("params/fc.weight/c/2/0/0")
    assert not store.place.has("params/fc.weight/c/5/0/0")
    store.commit(replace(tiny.write(store, 5), stored=False))
    assert recover(RoundStore(store.path)) == (5, [])


def test_numbers_that_are_behind_their_records_are_a_note_and_no_damage(tiny) -> None:
    """As a killed writer leaves them: the numbers of a window of rounds are copied at its end."""
    store = tiny.train(tiny.create(rounds=5), 2)
    numbers = re.compile(r"((bookkeeping|scores|metrics)/\w+|committed)/c/0.*")
    behind = {key: bytes(store.place.read(key)) for key in store.place.sizes() if numbers.fullmatch(key)}
    for round in (3, 4, 5):
        store.commit(tiny.write(store, round))
    store.show()
    whole = {key: bytes(store.place.read(key)) for key in behind}
    assert len(behind) > 4
    for key, content in behind.items():
        store.place.write(key, content)
    seen = verify(store.path)
    assert (seen.rounds, seen.findings) == (5, ())
    (note,) = seen.notes
    assert note.what.startswith("it lacks round 3 and what follows, until the run goes on")
    for key in behind:  # what is behind though `committed` tells of it is damage
        store.place.write(key, whole[key])
    store.place.write("scores/loss/c/0", behind["scores/loss/c/0"])
    assert [found.path for found in verify(store.path).findings] == ["scores/loss/c/0"]


# A real file system, which is shut down while it is written and mounted again.

SHUTDOWN, LOG_IS_LOST = 0x8004587D, (2).to_bytes(4, "little")
"""The request to ext4 to write nothing more to its device, and its journal not either."""


def called(*line: object) -> None:
    """Run a program of the system; raises where it fails."""
    subprocess.run([str(word) for word in line], check=True, capture_output=True)


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
def test_printed_rounds_are_there_after_a_real_power_loss(train, mounted, tmp_path) -> None:
    """Right after the third round; what the file system has in memory is lost."""

    def committed(commit: Commit) -> None:
        if commit.round == 3:
            descriptor = os.open(mounted[1], os.O_RDONLY)
            fcntl.ioctl(descriptor, SHUTDOWN, LOG_IS_LOST)
            os.close(descriptor)

    whole = train(**FIELDS, rounds=4, root=tmp_path / "whole", name="a")
    place = {"root": mounted[1] / "runs", "name": "a", "fsync": True}
    with pytest.raises(PlaceError):
        train(**FIELDS, rounds=4, **place, on_commit=committed)
    called("umount", mounted[1])
    called("mount", "-o", "loop", *mounted)
    left = Run(mounted[1] / "runs/a.zarr")
    assert left.done >= 3 and verify(left.path).sound
    goes_on(train, left.path, whole, 4)
