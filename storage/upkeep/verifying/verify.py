"""Verify a run: check every file of it against the chain of its commit records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from storage.errors import NotARun, PlaceError, RoundPruned, RoundweaveError, StoreError, UsageError
from storage.hierarchy.chunks import chunk_key
from storage.hierarchy.schema import ArraySpec
from storage.places.addresses import Where
from storage.places.base import Place
from storage.places.schemes import place_of
from storage.rounds.store import RoundStore
from storage.upkeep.verifying.contents import Sealed, sealed_chunks
from storage.upkeep.verifying.descriptions import descriptions
from storage.upkeep.verifying.numbers import numbers
from storage.upkeep.verifying.records import claims, quarantined, records, said
from storage.upkeep.verifying.stored import (
    Finding,
    Looked,
    Stored,
    read_known,
    refused,
    whole_commits,
)
from storage.upkeep.verifying.strangers import strangers

CHAIN = re.compile("[0-9a-f]{64}")


WHOSE = "it is of a committed round"


MISSING = "it is missing; restore the file from a copy"


THREADS = 4
"""How many files are read at once. Each may be as large as a tensor."""


@dataclass(frozen=True)
class Verification:
    """The result of verifying a run.

    `rounds` is the last committed round, and `chain` is that of its record. `files` and `bytes` count everything
    that is stored. `findings` are what is wrong. `notes` are files of a writer that was killed or is still at
    work. `vouched` is the round up to which an expected chain covers the history; None where none was given, or
    where it belongs to another history.
    """

    rounds: int
    files: int
    bytes: int
    chain: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    vouched: int | None = None

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def told(self) -> str:
        """One line that says whether the run is sound, and how much was read."""
        result = "sound" if self.sound else f"{len(self.findings)} found"
        return f"{result}; {max(self.rounds, 0)} rounds, {self.files:,} files, {self.bytes:,} bytes"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), *(f"note: {note}" for note in self.notes), self.told])


def verify(where: Where | Place, expect: str | None = None) -> Verification:
    """Read every file of the run at a place and compare it with the commit records.

    `expect` is a chain that was noted down earlier, of the newest record or of an earlier one. A run may be
    verified while it is written. Raises `UsageError` where `expect` is no chain, `NotARun` where there is nothing,
    and `PlaceError` where a file cannot be read.
    """
    if expect is not None and not CHAIN.fullmatch(expect):
        raise UsageError(f"{expect!r} is no chain, which has 64 hexadecimal digits; `roundweave verify` prints it")
    place = place_of(where)
    try:
        store = RoundStore(place)
    except PlaceError:
        raise
    except StoreError as error:
        return _unopened(place, error)
    stored, looks = _looked(store)
    result = _combined(stored, looks)
    return result if expect is None else _expecting(stored, result, expect)


def _unopened(place: Place, error: StoreError) -> Verification:
    """The result for a run that cannot be opened, as its attributes are damaged or not those of its records."""
    sizes = place.sizes()
    if not sizes:
        raise NotARun(f"nothing lies in {place}; `roundweave runs` lists the runs") from error
    what = str(error).removeprefix(str(place)).removeprefix("/zarr.json").lstrip(": ")
    findings = [Finding("zarr.json", what)]
    alone = [key for key in sizes if key == "commits/0.json" and "commits/1.json" not in sizes]
    findings += [Finding(key, "is the only record, and not one of these attributes") for key in alone]
    return Verification(-1, len(sizes), sum(sizes.values()), "", tuple(findings))


def _looked(store: RoundStore) -> tuple[Stored, list[Looked]]:
    """The run as it is now, and the result of each check."""
    # Numbers are written after their record. With files listed before records, every number has its record.
    sizes, rounds = store.place.sizes(), store.log.rounds()
    stored = Stored(store, rounds, *whole_commits(store, rounds), sizes, read_known(store))
    every = [sealed for sealed in sealed_chunks(store, stored.commits) if _stays(stored, sealed)]
    looks = [look(stored) for look in (records, claims, quarantined, said, numbers, descriptions)]
    looks.append(_chunks(stored, every))
    return stored, [*looks, strangers(stored, frozenset().union(*(look.keys for look in looks)))]


def _stays(stored: Stored, sealed: Sealed) -> bool:
    return all(stored.keeps(array, sealed.index) for array in sealed.arrays)


def _chunks(stored: Stored, every: list[Sealed]) -> Looked:
    """Verify every chunk of tensors that must exist against the digests in the records."""
    with ThreadPoolExecutor(THREADS) as threads:
        findings = [each for several in threads.map(partial(_unsound, stored), every) for each in several]
    return Looked(frozenset(key for sealed in every for key in sealed.keys), tuple(findings))


def _unsound(stored: Stored, sealed: Sealed) -> list[Finding]:
    """The findings for chunks that are not what was committed.

    All chunks of the common digest are reported where it is unknown which of them is wrong.
    """
    try:
        sealed.read()
    except PlaceError:
        raise
    except RoundPruned:
        pass  # it was pruned since verifying began
    except RoundweaveError:
        checks = [(chunk_key(array, sealed.index), _alone(stored, array, sealed)) for array in sealed.arrays]
        together = f", or another of {len(checks)} with one digest" if len(checks) > 1 else ""
        broken = [finding for _, finding in checks if finding]
        return broken or [Finding(key, f"it is not what was committed{together}") for key, _ in checks]
    return []


def _alone(stored: Stored, array: ArraySpec, sealed: Sealed) -> Finding | None:
    """What is wrong with one chunk by itself: it is missing or its checksum is wrong; None where neither is."""
    key, tensors = chunk_key(array, sealed.index), stored.store.tensors
    finding = refused(stored.place, key, partial(tensors.read_chunk, array, sealed.index, WHOSE))
    return finding if finding is None or key in stored.sizes else Finding(key, MISSING)


def _combined(stored: Stored, looks: list[Looked]) -> Verification:
    """The results of all checks together."""
    newest = stored.links.get(stored.newest)
    findings = sorted({each for look in looks for each in look.findings}, key=str)
    return Verification(
        rounds=stored.newest,
        files=len(stored.sizes),
        bytes=sum(stored.sizes.values()),
        chain=newest.chain if newest else "",
        findings=tuple(findings),
        notes=_gathered(each for look in looks for each in look.notes),
    )


def _gathered(notes: Iterable[Finding]) -> tuple[Finding, ...]:
    """One note for all files with the same note."""
    paths: dict[str, list[str]] = {}
    for note in notes:
        paths.setdefault(note.what, []).append(note.path)
    more = {what: f"; so are {len(same) - 1} more files" if len(same) > 1 else "" for what, same in paths.items()}
    return tuple(Finding(min(same), what + more[what]) for what, same in paths.items())


def _expecting(stored: Stored, result: Verification, chain: str) -> Verification:
    """A result to which the comparison with an expected chain is added."""
    for round, link in stored.links.items():
        if chain in (link.chain, link.before):
            return replace(result, vouched=round if chain == link.chain else round - 1)
    what = f"its chain is {result.chain}; {chain} is that of no round of this history"
    return replace(result, findings=(*result.findings, Finding(f"commits/{stored.newest}.json", what)))
