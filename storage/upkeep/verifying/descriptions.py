"""Verify the ``zarr.json`` documents of groups and arrays: each must be what the schema would write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from storage.errors import StoreDamaged
from storage.hierarchy.documents import LARGEST, NAME, documents, root_document, told_rows
from storage.hierarchy.schema import REPORTED, ArraySpec, split_array
from storage.parsing import numbered
from storage.places.base import Place
from storage.rounds.commits import Commit, numbers_of
from storage.rounds.lease import LEASES, read_claim
from storage.upkeep.verifying.numbers import last_copied
from storage.upkeep.verifying.stored import Finding, Looked, Stored, refused


def descriptions(stored: Stored) -> Looked:
    """Verify all documents. Arrays have as many rows as `commits`, except while a writer extends the run."""
    looked = _look(stored)
    # A writer may have begun to extend the run in the meantime, so findings are checked a second time.
    return _look(stored) if looked.findings else looked


def _look(stored: Stored) -> Looked:
    unfinished = _being_extended(stored)
    commits = {**stored.commits, **stored.later()}
    forms = [documents(_arrays(stored, commits, rounds)) for rounds in (stored.store.rounds, *unfinished)]
    wanted = {NAME: [root_document(stored.store.attributes)]}
    for key in {key for form in forms for key in form}:
        wanted[key] = [form[key] for form in forms if key in form]
    unwritten = _yet_unwritten(commits, last_copied(stored))
    findings, notes = [], []
    for key, allowed in wanted.items():
        finding = refused(stored.place, key, partial(_check, stored.place, key, allowed))
        if finding and key in unwritten and key not in stored.sizes:
            notes.append(Finding(key, "it is not written, until the run goes on"))
        elif finding:
            findings.append(finding)
    if unfinished:
        notes.append(Finding(f"commits/{NAME}", "arrays are not all described for more rounds, until it goes on"))
    return Looked(frozenset(wanted), tuple(findings), tuple(notes))


def _check(place: Place, key: str, allowed: list[bytes]) -> None:
    content = place.read(key, most=LARGEST)
    if content is None:
        raise StoreDamaged("it is missing")
    if bytes(content) not in allowed:
        raise StoreDamaged("it is not what was written for this run")


def _arrays(stored: Stored, commits: Mapping[int, Commit], rounds: int) -> list[ArraySpec]:
    """All arrays that the records need, with room for `rounds` rounds."""
    schema = stored.store.schema
    splits = {commit.split.number: commit.split.examples for commit in commits.values() if commit.split}
    return [
        *schema.arrays(rounds + 1).values(),
        *(schema.number(path, rounds + 1) for path in sorted(_reported(commits.values()))),
        *(split_array(number, examples) for number, examples in sorted(splits.items())),
    ]


def _reported(commits: Iterable[Commit]) -> set[str]:
    """The paths of the metrics and scores that appear in commits."""
    return {path for commit in commits for path in numbers_of(commit) if path.partition("/")[0] in REPORTED}


def _yet_unwritten(commits: Mapping[int, Commit], copied: int) -> set[str]:
    """The keys of documents for metrics and scores that first appear in rounds not copied into arrays yet."""
    first = _reported(c for c in commits.values() if c.round > copied)
    first -= _reported(c for c in commits.values() if c.round <= copied)
    return {f"{part}/{NAME}" for path in first for part in (path, path.partition("/")[0])}


def _being_extended(stored: Stored) -> set[int]:
    """The old and the new number of rounds while a writer extends the run; empty otherwise.

    The document of `commits` gets the new number last. The writers' claims say which numbers are legitimate.
    """
    epochs = numbered(stored.place.names(LEASES))
    wanted = [claim.rounds for epoch in epochs if (claim := read_claim(stored.place, epoch))]
    # The run may have been extended since the store was opened.
    fewest = min(stored.store.rounds, (told_rows(stored.place, "commits") or 0) - 1)
    return {fewest, wanted[-1]} if fewest in wanted[:-1] and fewest < wanted[-1] else set()
