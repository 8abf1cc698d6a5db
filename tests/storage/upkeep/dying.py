"""A place that dies at one of its writes, as a process does that is killed there, and what is then found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from roundweave.storage.places.local import LocalPlace
from roundweave.storage.upkeep.verifying.verify import verify


class Killed(BaseException):
    """Nothing of the store's own may catch it."""


@dataclass(frozen=True)
class Dying(LocalPlace):
    """Dies at a write, creation or deletion of this number; of a folder that it would delete a part is gone."""

    at_call: int = -1
    calls: list[str] = field(default_factory=list)

    def stream(self, key: str, pieces: Iterable[bytes | memoryview], durable: bool = False) -> None:
        self._count(key)
        super().stream(key, pieces, durable)

    def create(self, key: str, *pieces: bytes | memoryview, durable: bool = False) -> bool:
        self._count(key)
        return super().create(key, *pieces, durable=durable)

    def delete(self, prefix: str) -> None:
        if len(self.calls) == self.at_call:
            for key in list(LocalPlace(self.path / prefix).sizes())[:1]:
                super().delete(f"{prefix}/{key}" if prefix else key)
        self._count(prefix)
        super().delete(prefix)

    def delete_names(self, prefix: str, names: Sequence[str]) -> None:
        if len(self.calls) == self.at_call:
            super().delete_names(prefix, names[:1])
        self._count(prefix)
        super().delete_names(prefix, names)

    def _count(self, key: str) -> None:
        if len(self.calls) == self.at_call:
            raise Killed
        self.calls.append(key)


def named(path: Path) -> set[str]:
    """The files that verifying a run names."""
    return {finding.path for finding in verify(path).findings}


def bury(path: Path) -> None:
    """Take the claim back of one who died: its process is ours, which lives on."""
    LocalPlace(path).delete("commits/leases")


def each_death(path: Path, work: Callable[[LocalPlace], object], anew: Callable[[], object]) -> Iterator[str]:
    """Do the work once for each of its writes, on what `anew` makes, and die there; gives the key of each."""
    whole = Dying(path)
    anew()
    work(whole)
    for number, key in enumerate(whole.calls):
        anew()
        with pytest.raises(Killed):
            work(Dying(path, number))
        bury(path)
        yield key
