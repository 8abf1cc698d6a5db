"""What the store asks of the place where a run lies."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from storage.errors import StoreError

PARTIAL = ".partial"
"""How the names of half-written contents end."""


Piece = bytes | memoryview
"""A part of a content, as bytes; a memoryview must be contiguous and of single bytes."""


class Place(Protocol):
    """Contents by key, on a disk or elsewhere; keys are relative posix paths such as ``params/w/c/0``.

    A content is there as a whole or not at all, also for readers in other processes and after a writer's death.
    A key that leads out of the place raises `StoreError`, and so does a link on its way, which could lead there;
    what the disk or the network refuses is a `PlaceError`.
    As text it is what messages call it, and `place_of` gives it back.
    """

    @property
    def at_once(self) -> int:
        """How many requests it likes at once; 1 where none is worth a thread."""

    def has(self, key: str) -> bool:
        """Whether there is a content."""

    def names(self, prefix: str = "") -> list[str]:
        """What comes next in the keys under ``prefix/``, ascending; nothing where there is no such key."""

    def read(self, key: str, most: int | None = None) -> memoryview | None:
        """A content, in memory of its own that may be written to; None where there is none.

        Raises `StoreDamaged`, before memory is taken, where it has more than so many bytes.
        """

    def read_part(self, key: str, first: int, size: int) -> memoryview | None:
        """So many bytes of a content from the first, or as many as there are; None where there is no content."""

    def sizes(self) -> dict[str, int]:
        """The bytes of each content, by key, ascending; half-written ones too, which only `sweep` deletes."""

    def write(self, key: str, *pieces: Piece, durable: bool = False) -> None:
        """Create or replace a content; a durable one survives a power loss."""

    def stream(self, key: str, pieces: Iterable[Piece], durable: bool = False) -> None:
        """The same of pieces that are made as they are written; what they raise leaves the content as it was."""

    def create(self, key: str, *pieces: Piece, durable: bool = False) -> bool:
        """Create a content; False, and nothing written, where there is one. Of several writers one succeeds."""

    def delete(self, prefix: str) -> None:
        """Delete the content of this key, and all whose keys begin with ``prefix/``; all of the place for ""."""

    def sweep(self) -> None:
        """Delete what killed writers left half-written; only the one writer may call this."""

    def sync(self) -> None:
        """Make all that is here survive a power loss."""

    def flush(self) -> None:
        """The same of all that processes of this machine have written to the disk that this is on, in one go."""

    def make(self) -> None:
        """Make the place, where it is not there; raises `PlaceError` where nothing can be written in it."""

    def aside(self) -> AbstractContextManager[Place]:
        """An empty place whose contents come here all at once at the end, or never; raises `PlaceTaken`."""


def parts_of(key: str, place: object) -> list[str]:
    """The names of a key; none leads out of its place, or is another spelling of the place it stands in."""
    parts = key.split("/") if key else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StoreError(f"{key!r} leads out of {place}")
    return parts
