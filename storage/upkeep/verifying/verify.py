"""Verify a run: check every file of it against the chain of its commit records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from roundweave.storage.errors import NotARun, PlaceError, RoundPruned, RoundweaveError, StoreError, UsageError
from roundweave.storage.hierarchy.schema import ArraySpec, split_array
from roundweave.storage.hierarchy.zarr_format import chunk_key
from roundweave.storage.places.base import Place, Where
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.verifying.audit import Audit, Finding
from roundweave.storage.upkeep.verifying.records import (
    claims,
    descriptions,
    numbers,
    records,
    sections,
    statements,
    strangers,
    verify_quarantined,
)
from roundweave.storage.values.digests import NOTHING_KEPT

CHAIN = re.compile("[0-9a-f]{64}")


THREADS = 4
"""How many files are read at once, if that takes little memory. Each may be as large as a state."""

AT_ONCE = 1 << 28
"""The bytes that files which are read at once may have together, if it is more than one."""


@dataclass(frozen=True)
class Verification:
    """The result of verifying a run.

    `rounds` is the last committed round, and `chain` is that of its record. `files` and `bytes` count everything
    that is stored. `findings` are what is wrong. `notes` are files of a writer that was killed or is still at
    work. `vouched` is the round up to which an expected chain covers the history; None if none was given, or where
    it belongs to another history.
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
    def summary_line(self) -> str:
        """One line that says whether the run is sound, and how much was read."""
        result = "sound" if self.sound else f"{len(self.findings)} found"
        return f"{result}; {max(self.rounds, 0)} rounds, {self.files:,} files, {self.bytes:,} bytes"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), *(f"note: {note}" for note in self.notes), self.summary_line])


def verify(where: Where | Place, expect: str | None = None) -> Verification:
    """Read every file of the run at a place and compare it with the commit records.

    `expect` is a chain that was noted down earlier, of the newest record or of an earlier one. A run may be
    verified while it is written. Raises `UsageError` if `expect` is no chain, `NotARun` if there is nothing, and
    `PlaceError` if a file cannot be read.
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
    audit = Audit.of(store)
    for look in (
        records,
        claims,
        sections,
        verify_quarantined,
        statements,
        numbers,
        descriptions,
        _chunks,
        strangers,
    ):
        look(audit)
    newest = audit.links.get(audit.newest)
    result = Verification(
        rounds=audit.newest,
        files=len(audit.sizes),
        bytes=sum(audit.sizes.values()),
        chain=newest.chain if newest else "",
        findings=tuple(sorted(set(audit.findings), key=str)),
        notes=_gathered(audit.notes),
    )
    return result if expect is None else _expecting(audit, result, expect)


def _unopened(place: Place, error: StoreError) -> Verification:
    """Return the result for a run that cannot be opened, because its attributes are damaged or foreign."""
    sizes = place.sizes()
    if not any(key == "zarr.json" or key.startswith("commits/") for key in sizes):
        raise NotARun(f"no run lies in {place}; `roundweave runs` lists the runs") from error
    what = str(error).removeprefix(str(place)).removeprefix("/zarr.json").lstrip(": ")
    findings = [Finding("zarr.json", what)]
    alone = [key for key in sizes if key == "commits/0.json" and "commits/1.json" not in sizes]
    findings += [Finding(key, "is the only record, and not one of these attributes") for key in alone]
    return Verification(-1, len(sizes), sum(sizes.values()), "", tuple(findings))


@dataclass(frozen=True)
class Sealed:
    """Chunks that one digest covers: their arrays, their common index, and a function that verifies them all."""

    arrays: tuple[ArraySpec, ...]
    index: tuple[int, ...]
    read: Callable[[], object]

    @property
    def keys(self) -> dict[str, ArraySpec]:
        """The arrays by the keys of the chunks."""
        return {chunk_key(array, self.index): array for array in self.arrays}


def _chunks(audit: Audit) -> None:
    """Verify every chunk of tensors that must exist against the digests in the records."""
    every = [
        sealed
        for sealed in _sealed_chunks(audit.store, list(audit.commits.values()))
        if all(audit.keeps(array, sealed.index) for array in sealed.arrays)
    ]
    audit.keys.update(key for sealed in every for key in sealed.keys)
    few = AT_ONCE // max(1, audit.schema.state_bytes)
    with ThreadPoolExecutor(min(THREADS, max(1, few))) as threads:
        for findings in threads.map(partial(_unsound, audit), every):
            audit.findings.extend(findings)


def _sealed_chunks(store: RoundStore, commits: list[Commit]) -> Iterator[Sealed]:
    """Yield all chunks of tensors that must exist according to the records of the committed rounds, each once."""
    tensors, arrays = store.tensors, store.tensors.arrays
    vectors, matching = (
        tuple(arrays[path] for path in specs) for specs in (store.schema.vectors(1), store.schema.matching(1))
    )
    for number, commit in enumerate(commits):
        for path in store.schema.state(1):
            # Frozen parameters are stored once. Every record has their digests, so the first one is used.
            frozen = path.startswith("frozen/")
            if number == 0 if frozen else commit.stored:
                index: tuple[int, ...] = () if frozen else (commit.round,)
                yield Sealed((arrays[path],), index, partial(tensors.read_tensor, commit, path))
        for partition, record in commit.updates.items():
            index = (commit.round, partition)
            if record.digest != NOTHING_KEPT and commit.has_update(partition):
                yield Sealed(vectors, index, partial(tensors.read_update, commit, partition))
            if record.match is not None and commit.has_update(partition):
                yield Sealed(matching, index, partial(tensors.read_match, commit, partition))
    for split, commit in {commit.split: commit for commit in commits if commit.split}.items():
        yield Sealed((split_array(split.number, split.examples),), (0,), partial(store.splits.read, commit))


def _unsound(audit: Audit, sealed: Sealed) -> list[Finding]:
    """Return the findings for chunks that are not what was committed.

    All chunks of the common digest are reported if it is unknown which of them is wrong.
    """
    try:
        sealed.read()
    except PlaceError:
        raise
    except RoundPruned:
        pass  # it was pruned since verifying began
    except RoundweaveError:
        broken = {key: _alone(audit, array, sealed.index, key) for key, array in sealed.keys.items()}
        together = f", or another of {len(broken)} with one digest" if len(broken) > 1 else ""
        alone = [Finding(key, what) for key, what in broken.items() if what]
        return alone or [Finding(key, f"it is not what was committed{together}") for key in broken]
    return []


def _alone(audit: Audit, array: ArraySpec, index: tuple[int, ...], key: str) -> str | None:
    """Return what is wrong with one chunk by itself: it is missing or its checksum is wrong.

    None if neither is.
    """
    read = partial(audit.store.tensors.read_chunk, array, index, "it is of a committed round")
    what = audit.refusal(key, read)
    return what if what is None or key in audit.sizes else "it is missing; restore the file from a copy"


def _gathered(notes: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one note for all files with the same note."""
    paths: dict[str, list[str]] = {}
    for note in notes:
        paths.setdefault(note.what, []).append(note.path)
    more = {what: f"; so are {len(same) - 1} more files" if len(same) > 1 else "" for what, same in paths.items()}
    return tuple(Finding(min(same), what + more[what]) for what, same in paths.items())


def _expecting(audit: Audit, result: Verification, chain: str) -> Verification:
    """Return a result to which the comparison with an expected chain is added."""
    for round, link in audit.links.items():
        if chain in (link.chain, link.before):
            return replace(result, vouched=round if chain == link.chain else round - 1)
    what = f"its chain is {result.chain}; {chain} is that of no round of this history"
    return replace(result, findings=(*result.findings, Finding(f"commits/{audit.newest}.json", what)))
