"""Aliases of runs, such as ``champion``: names under a root that runs take from one another.

An alias is a history. Each entry has a number of its own and is created exclusively, so of two processes that give
an alias at once one comes second, and sees the other's entry before it. Entries are never changed or deleted, and
each ends in a digest of its content and has that of the entry before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from roundweave.storage.errors import StoreDamaged, UsageError
from roundweave.storage.parsing import Round, Time, mistakes_as, numbered
from roundweave.storage.places.base import Place, Where, join_address, together
from roundweave.storage.places.schemes import place_of
from roundweave.storage.values.digests import LARGEST_SEALED, sealed, unsealed
from roundweave.storage.values.hashing import bytes_digest

FOLDER = ".aliases"
"""The folder of all aliases under a root, each with a folder of its own."""

NAME = re.compile(r"\w[\w.\-]{0,249}")


@dataclass(frozen=True)
class Holding:
    """Who has an alias from a time on, in seconds since the epoch, and why; `run` is None where it was taken back.

    `round` is the newest one of the run at that time and `chain` that of its record. `before` is the digest of the
    former entry; empty of the first one.
    """

    number: Annotated[int, Field(ge=1)]
    run: str | None
    round: Round | None
    chain: str | None
    why: str
    since: Time
    before: str


Unless = Callable[[list[Holding]], str | None]
"""Gives a reason for which an alias with these entries stays where it is; None if it may be given."""


def unconditionally(entries: list[Holding]) -> None:
    """Lets an alias be given, whatever its entries are."""


def aliases(root: Where) -> list[str]:
    """The names of all aliases under a root, ascending, also of those that nobody has any more."""
    return sorted(filter(NAME.fullmatch, _place(root).names()))


def alias_history(root: Where, alias: str) -> list[Holding]:
    """The entries of an alias, the newest last; raises `StoreDamaged` for one that is missing or changed."""
    return [entry for entry, _ in _read_history(_place(root), alias)]


def holder_of(root: Where, alias: str) -> str | None:
    """The name of the run that has an alias; None where there is no such alias or nobody has it."""
    place = _place(root)
    return _holder(place, alias, _newest(place, alias)) if NAME.fullmatch(alias) else None


def holders(root: Where) -> dict[str, str]:
    """The names of the runs that have aliases, by alias."""
    held = ((alias, holder_of(root, alias)) for alias in aliases(root))
    return {alias: run for alias, run in held if run is not None}


def kept_for_aliases(root: Where) -> dict[str, str]:
    """Why runs are kept, by name: those that have an alias, and those that had it before, to go back to."""
    place, kept = _place(root), dict[str, str]()
    for alias in aliases(root):
        newest = _newest(place, alias)
        for number, said in ((newest, "it is"), (newest - 1, "it was, before the present one,")):
            if run := _holder(place, alias, number):
                kept.setdefault(run, f"{said} {alias}")
    return kept


def give_alias(
    root: Where,
    alias: str,
    run: str | None,
    why: str,
    round: int | None = None,
    chain: str | None = None,
    unless: Unless = unconditionally,
) -> str | None:
    """Give an alias to a run, or take it back where `run` is None, and keep that in its history.

    `unless` is called with the entries so far, and may give a reason for which the alias stays where it is. That
    reason is returned; None where the alias was given. Raises `UsageError` for a name that no alias can have.
    """
    if not NAME.fullmatch(alias):
        raise UsageError(f"{alias!r} is no name of an alias; give letters, digits, '_', '-' and '.'")
    place = _place(root)
    place.make()
    while True:  # until no other process has given the alias in between
        known = _read_history(place, alias)
        if reason := unless([entry for entry, _ in known]):
            return reason
        number, before = len(known) + 1, known[-1][1] if known else ""
        entry = Holding(number, run, round, chain, why, time.time(), before)
        if place.create(_key(alias, number), sealed(entry), durable=True):
            return None


def _place(root: Where) -> Place:
    return place_of(join_address(root, FOLDER))


def _key(alias: str, number: int) -> str:
    return f"{alias}/{number}.json"


def _newest(place: Place, alias: str) -> int:
    return max(numbered(place.names(alias)), default=0)


def _holder(place: Place, alias: str, number: int) -> str | None:
    """The run of an entry; None where it was taken back, and of a number below 1."""
    return _entry(place, alias, number, _content(place, alias, number)).run if number > 0 else None


def _read_history(place: Place, alias: str) -> list[tuple[Holding, str]]:
    """The entries of an alias, the newest last, each with the digest of its content; raises `StoreDamaged`."""
    numbers = range(1, _newest(place, alias) + 1)
    contents = together(place, lambda number: _content(place, alias, number), numbers)
    entries = [_entry(place, alias, number, content) for number, content in zip(numbers, contents, strict=True)]
    digests = [bytes_digest(content) for content in contents]
    for entry, before in zip(entries, ["", *digests], strict=False):
        if entry.before != before:
            raise StoreDamaged(f"{place}/{_key(alias, entry.number)} does not follow the one before; restore both")
    return list(zip(entries, digests, strict=True))


def _content(place: Place, alias: str, number: int) -> bytes:
    return bytes(place.read(_key(alias, number), most=LARGEST_SEALED) or b"")


def _entry(place: Place, alias: str, number: int, content: bytes) -> Holding:
    where = f"{place}/{_key(alias, number)}"
    with mistakes_as(lambda error: StoreDamaged(f"{where} is not what was written; restore it ({error})")):
        entry = unsealed(Holding, content)
    if entry.number != number:
        raise StoreDamaged(f"{where} is entry {entry.number}; restore it")
    return entry
