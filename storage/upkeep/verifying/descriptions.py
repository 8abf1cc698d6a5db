"""Verifying the descriptions of groups and arrays, ``zarr.json``: each is what the schema would write."""

from __future__ import annotations

from functools import partial

from storage.errors import StoreDamaged
from storage.hierarchy.chunks import CHUNK
from storage.hierarchy.documents import LARGEST, NAME, documents, root_document, told_rows
from storage.hierarchy.schema import ArraySpec, split_array
from storage.hierarchy.shards import sharded
from storage.parsing import numbered
from storage.places.base import Place
from storage.rounds import packed as packing
from storage.rounds.commits import reported_by
from storage.rounds.lease import LEASES, read_claim
from storage.upkeep.verifying.stored import Finding, Looked, Stored, refused


def descriptions(stored: Stored) -> Looked:
    """All descriptions; those of arrays have as many rows as `commits`, but while the run is made longer."""
    looked = _look(stored)
    # A writer may have begun to make it longer meanwhile, so what is found is looked at again.
    return _look(stored) if looked.findings else looked


def _look(stored: Stored) -> Looked:
    unfinished = _being_extended(stored)
    forms = [form for rounds in (stored.store.rounds, *unfinished) for form in _forms(stored, rounds)]
    wanted = {NAME: [root_document(stored.store.attributes)]}
    for key in {key for form in forms for key in form}:
        wanted[key] = [form[key] for form in forms if key in form]
    unwritten = _yet_unwritten(stored)
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


def _forms(stored: Stored, rounds: int) -> list[dict[str, bytes]]:
    """The documents that there may be with room for so many rounds: arrays may be plain, or gathered in shards."""
    gathered = {shard.spec.path for shard in stored.shards.values()}
    plain = {parts[1] for parts in map(CHUNK.fullmatch, stored.sizes) if parts}
    arrays, packed = _arrays(stored, rounds), list[ArraySpec]()
    for array in list(arrays):
        form = sharded(array)
        if form and (array.path in gathered or (packing.KEY in stored.sizes and array.path not in plain)):
            packed.append(form)
        # Those of both are being packed, those of none may have been.
        if array.path in gathered and array.path not in plain:
            arrays.remove(array)
    return [documents(arrays), documents(packed)] if packed else [documents(arrays)]


def _arrays(stored: Stored, rounds: int) -> list[ArraySpec]:
    """All arrays that the records tell of, with room for so many rounds."""
    schema, commits = stored.store.schema, [*stored.commits.values(), *stored.later.values()]
    splits = {commit.split.number: commit.split.examples for commit in commits if commit.split}
    return [
        *schema.arrays(rounds + 1).values(),
        *(schema.reported(path, rounds + 1) for path in sorted(reported_by(commits))),
        *(split_array(number, examples) for number, examples in sorted(splits.items())),
    ]


def _yet_unwritten(stored: Stored) -> set[str]:
    """The documents of numbers that the newest rounds are the first to tell of: their record comes before them."""
    newest = [*stored.later.values(), *(c for c in stored.commits.values() if c.round == stored.newest)]
    earlier = (commit for commit in stored.commits.values() if commit.round < stored.newest)
    first = reported_by(newest) - reported_by(earlier)
    return {f"{part}/{NAME}" for path in first for part in (path, path.partition("/")[0])}


def _being_extended(stored: Stored) -> set[int]:
    """The numbers of rounds that there may be while a run is made longer: `commits` gets the new one last.

    The claims of writers tell which they are, so that others are not taken for them.
    """
    epochs = numbered(stored.place.names(LEASES))
    wanted = [claim.rounds for epoch in epochs if (claim := read_claim(stored.place, epoch))]
    # It may have been made longer since the store was opened.
    fewest = min(stored.store.rounds, (told_rows(stored.place, "commits") or 0) - 1)
    return {fewest, wanted[-1]} if fewest in wanted[:-1] and fewest < wanted[-1] else set()
