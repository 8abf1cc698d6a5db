"""The interface that the store uses to read and write a run, wherever it lies."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from storage.errors import StoreError

PARTIAL = ".partial"
"""The suffix of the names of half-written contents."""


Piece = bytes | memoryview
"""A part of a content. A memoryview must be contiguous, with items of one byte."""


class Place(Protocol):
    """Contents (byte strings) by key, on a disk or elsewhere. A key is a relative posix path, as ``params/w/c/0``.

    A content is visible as a whole or not at all, also to other processes and after a writer was killed. Every
    method raises `StoreError` for a key that leads out of the place or passes a link, and `PlaceError` where the
    disk or the network refuses. The text of a place, ``str(place)``, is its address, from which `place_of` makes
    an equal place.
    """

    @property
    def at_once(self) -> int:
        """How many requests are worth making at once; 1 where threads would not pay."""

    def has(self, key: str) -> bool:
        """Whether there is a content under this key."""

    def names(self, prefix: str = "") -> list[str]:
        """The names of contents and folders directly under ``prefix/``, ascending; none where nothing is there."""

    def read(self, key: str, most: int | None = None) -> memoryview | None:
        """The content under a key, in writable memory of its own; None where there is none.

        Raises `StoreDamaged` for more than `most` bytes, before memory is allocated.
        """

    def read_part(self, key: str, first: int, size: int) -> memoryview | None:
        """Up to `size` bytes of a content from offset `first`; None where there is no content."""

    def sizes(self) -> dict[str, int]:
        """The number of bytes of each content by key, ascending, half-written ones included."""

    def write(self, key: str, *pieces: Piece, durable: bool = False) -> None:
        """Create or replace a content from its pieces. Where `durable`, it survives a power loss from then on."""

    def stream(self, key: str, pieces: Iterable[Piece], durable: bool = False) -> None:
        """Create or replace a content from pieces that are produced while it is written.

        An error while a piece is produced leaves the content as it was.
        """

    def create(self, key: str, *pieces: Piece, durable: bool = False) -> bool:
        """Create a content that must not exist yet; False, with nothing written, where it does.

        Of several processes that create the same key at once, exactly one succeeds.
        """

    def delete(self, prefix: str) -> None:
        """Delete the content of this key and all below ``prefix/``. An empty prefix deletes the whole place."""

    def sweep(self) -> None:
        """Delete half-written contents of killed writers. Only the process that holds the lease may call this."""

    def sync(self) -> None:
        """Make all contents of this place survive a power loss, file by file."""

    def flush(self) -> None:
        """Make everything that this machine wrote to the place's file system survive a power loss, in one call."""

    def make(self) -> None:
        """Create the place where it is missing; raises `PlaceError` where nothing can be written in it."""

    def aside(self) -> AbstractContextManager[Place]:
        """A context with an empty temporary place, whose contents appear here all at once at its end.

        After an error in the context nothing appears. Raises `PlaceTaken` where something is here by then.
        """


def parts_of(key: str, place: object) -> list[str]:
    """The parts of a key between slashes; raises `StoreError` for ``..`` and other parts that are no names."""
    parts = key.split("/") if key else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StoreError(f"{key!r} leads out of {place}")
    return parts
