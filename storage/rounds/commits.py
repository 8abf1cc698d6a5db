"""The commit record: what makes a round exist. It is created last, exclusively, and never changed."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from storage.errors import RoundMissing, StoreDamaged, WriterFenced

PARTIAL = ".partial"


@dataclass(frozen=True)
class UpdateRecord:
    """What the commit says of one partition's update; `refused` is the reason, None where it was accepted.

    `match` is the digest of how its units were matched, where they were.
    """

    digest: str
    weight: int
    refused: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    worker: str = ""
    match: str | None = None


@dataclass(frozen=True)
class Score:
    """Mean loss and share of right classes on the held-out examples; accuracy is None for regression.

    `examples` counts those that were scored: partitions with a loss that is no number are left out.
    """

    loss: float
    accuracy: float | None
    examples: int = 0


@dataclass(frozen=True)
class Commit:
    """One committed round.

    `token` and `epoch` are the writer's (see `Lease`); `state` and `tensors` are digests; `updates` is keyed by
    partition; `carry_from` tells from which round each partition's carry comes; `best` is the lowest loss so far
    and `since_best` the scores since; `stop` is the reason to end the run here; `time` is seconds since the epoch.
    """

    round: int
    token: str
    epoch: int
    state: str
    tensors: Mapping[str, str]
    updates: Mapping[int, UpdateRecord] = field(default_factory=dict)
    carry_from: Mapping[int, int] = field(default_factory=dict)
    score: Score | None = None
    best: float | None = None
    since_best: int = 0
    stop: str | None = None
    seconds: float = 0.0
    time: float = 0.0

    @property
    def accepted(self) -> list[int]:
        """The partitions whose updates were taken, in order."""
        return [partition for partition, update in self.updates.items() if update.refused is None]

    def identity(self) -> tuple[Any, ...]:
        """What two commits of the same work share: all but the writer, times and places."""
        updates = [(p, u.digest, u.weight, u.refused, u.match) for p, u in self.updates.items()]
        return self.round, self.state, dict(self.tensors), updates, dict(self.carry_from)

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """The inverse of `to_json`."""
        value = json.loads(text)
        updates = {int(p): UpdateRecord(**u) for p, u in value.pop("updates").items()}
        carry_from = {int(p): r for p, r in value.pop("carry_from").items()}
        score = value.pop("score")
        return cls(**value, updates=updates, carry_from=carry_from, score=Score(**score) if score else None)


class CommitLog:
    """The commit records of a run, one JSON file a round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """The committed rounds, ascending."""
        return sorted(int(p.stem) for p in self.folder.glob("*.json") if p.stem.isdecimal())

    def has(self, round: int) -> bool:
        """Whether a round is committed."""
        return self._path(round).exists()

    def read(self, round: int) -> Commit:
        """The record of a round; raises `RoundMissing`, or `StoreDamaged` for a file that is no record."""
        path = self._path(round)
        try:
            return Commit.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            rounds = self.rounds()
            there = f"it has rounds {rounds[0]} to {rounds[-1]}" if rounds else "it has none"
            raise RoundMissing(f"no committed round {round} in {self.folder.parent}; {there}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreDamaged(f"{path} is no commit record: {error}") from error

    def create(self, commit: Commit, fsync: bool = False) -> Commit:
        """Write a record that must not exist yet; an equal one of this or an earlier writer is taken instead.

        A worker may die after its commit and before it said so, and its task then runs again; or a killed run's
        last task still commits while the run is resumed. Other bits, or a later writer, raise `WriterFenced`.
        """
        write_exclusively(self._path(commit.round), commit.to_json(), fsync)
        found = self.read(commit.round)
        if found.epoch > commit.epoch or found.identity() != commit.identity():
            raise WriterFenced(
                f"round {commit.round} of {self.folder.parent} was committed by another writer ({found.token}); "
                "this one stops"
            )
        return found

    def set_aside(self, after: int) -> list[int]:
        """Take the records of later rounds out of the log, keeping them as evidence; which rounds they were."""
        later = [round for round in self.rounds() if round > after]
        for round in later:
            self._path(round).rename(self.folder / f"damaged-{round}-{secrets.token_hex(4)}.json")
        return later

    def damaged(self) -> list[int]:
        """The rounds whose records were set aside."""
        return sorted({int(path.name.split("-")[1]) for path in self.folder.glob("damaged-*-*.json")})

    def clean(self) -> None:
        """Delete what a killed writer left half-written."""
        for path in self.folder.glob(f"*{PARTIAL}"):
            path.unlink(missing_ok=True)

    @property
    def failure(self) -> str | None:
        """Why the run failed, None where it did not."""
        try:
            return self._failure.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    @failure.setter
    def failure(self, reason: str | None) -> None:
        if reason is None:
            self._failure.unlink(missing_ok=True)
        else:
            write_atomically(self._failure, reason)

    @property
    def _failure(self) -> Path:
        return self.folder / "failure.txt"

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.json"


def write_exclusively(path: Path, text: str, fsync: bool = False) -> bool:
    """Create a file with all of its text at once; False, and nothing written, where the name is taken."""
    partial = _write_partial(path, text, fsync)
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    if fsync:
        sync_folder(path.parent)
    return True


def write_atomically(path: Path, text: str) -> None:
    """Create or replace a file with all of its text at once."""
    _write_partial(path, text, fsync=False).replace(path)


def _write_partial(path: Path, text: str, fsync: bool) -> Path:
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
    return partial


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
