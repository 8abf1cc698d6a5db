"""Verify records, claims and documents of a run, and find files that belong to none of its rounds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from roundweave.storage.errors import StoreDamaged, spans
from roundweave.storage.hierarchy.schema import REPORTED, ArraySpec, split_array
from roundweave.storage.hierarchy.zarr_format import (
    LARGEST,
    NAME,
    array_of,
    described_rows,
    documents,
    root_document,
)
from roundweave.storage.parsing import config_field, numbered
from roundweave.storage.rounds import columns, log, numbers, pruned
from roundweave.storage.rounds.commits import Commit, numbers_of
from roundweave.storage.rounds.lease import LEASES, read_claim
from roundweave.storage.rounds.packs import pack_key
from roundweave.storage.rounds.sections import JUDGEMENT, KEY, read_section
from roundweave.storage.upkeep.verifying.audit import Audit
from roundweave.storage.values.hashing import bytes_digest

QUARANTINED = (log.ASIDE, pruned.ASIDE)
"""Match the names of quarantined records, which end in the beginning of a digest."""


HALF_WRITTEN = re.compile(r"(.+/)?\.[0-9a-f]{16}\.partial(/.+)?")


SPLIT = re.compile(rf"partitions/(?:([0-9]{{1,18}})/(?:{re.escape(NAME)}|c/0)|{re.escape(NAME)})")


def records(audit: Audit) -> None:
    """Verify that no commit record is missing, and that each is whole and the one that the next one follows."""
    for first, last in spans(set(range(max(audit.newest, audit.copied.round, 0) + 1)) - set(audit.rounds)):
        others = "" if first == last else f", as are those up to commits/{last}.json"
        lost = "the rounds are lost" if others else "the round is lost"
        audit.find(f"commits/{first}.json", f"it is missing{others}, and {lost}")
    for round in audit.rounds:
        key = audit.store.log.key(round)
        audit.keys.add(key)
        if round not in audit.commits and audit.check(key, partial(audit.store.log.read, round)):
            audit.find(key, f"it is not the record of round {round} that the next one follows")
    for first in audit.store.log.torn:
        audit.find(pack_key(first), "it has damaged line breaks; `roundweave resume` mends them")


def statements(audit: Audit) -> None:
    """Verify that the files that say which rounds were pruned and copied, and of which examples, belong to it."""
    if audit.store.attributes.get("columns"):
        audit.check(columns.KEY, partial(columns.read_columns, audit.place, audit.store.attributes))
    audit.check(pruned.KEY, partial(pruned.check_pruned, audit.store.log))
    audit.check(numbers.KEY, partial(numbers.read_copied, audit.store.log))


def claims(audit: Audit) -> None:
    """Verify the writers' claims: those that are stored, and those whose epochs appear in commits."""
    epochs = numbered(key.removeprefix(f"{LEASES}/") for key in audit.sizes if key.startswith(LEASES))
    last = max([0, *epochs, *(commit.epoch for commit in audit.commits.values())])
    for epoch in {*epochs, *range(1, min(last, len(epochs) + 99) + 1)}:
        key = f"{LEASES}/{epoch}.json"
        audit.keys.add(key)
        if epoch not in epochs:
            audit.find(key, "it is missing")
        elif read_claim(audit.place, epoch) is None:
            audit.find(key, "it is not the claim that a writer wrote")


def sections(audit: Audit) -> None:
    """Verify that what plugins wrote is of the rounds as they are recorded."""
    for key, parts in [(key, parts) for key in audit.sizes if (parts := KEY.fullmatch(key))]:
        audit.keys.add(key)
        name, link = parts[1] or JUDGEMENT, audit.links.get(int(parts[2]))
        if link and read_section(audit.place, name, int(parts[2]), link.chain) is None:
            audit.find(key, "it is not what was said of the round that is recorded")


def verify_quarantined(audit: Audit) -> None:
    """Verify that each quarantined record has the digest that its name says."""
    for key in audit.sizes:
        names = (name.fullmatch(key.removeprefix("commits/")) for name in QUARANTINED)
        if parts := next(filter(None, names), None):
            audit.check(key, partial(_check_digest, audit, key, parts.groups()[-1]))


def _check_digest(audit: Audit, key: str, digest: str) -> None:
    if not bytes_digest(audit.place.read(key) or b"").startswith(digest):
        raise StoreDamaged("it is not the record that was quarantined under this name")


def descriptions(audit: Audit) -> None:
    """Verify all documents. Arrays have as many rows as `commits`, except while a writer extends the run.

    The documents of metrics and scores that first appear after the copied rounds may be unwritten.
    """
    # A writer claims the run, extends its arrays, and writes the document of `commits` last. Read in the opposite
    # order, what a writer extends in the meantime is never newer than the claims.
    described = (described_rows(audit.place, "commits") or 0) - 1
    commits = list(({**audit.commits, **audit.later()}).values())
    keys = {NAME, *documents(_arrays(audit, commits, audit.store.rounds))}
    contents: dict[str, memoryview | None] = {}
    for key in keys:
        audit.check(key, lambda: contents.update({key: audit.place.read(key, most=LARGEST)}))  # noqa: B023
    extended = _being_extended(audit, described)
    forms = [documents(_arrays(audit, commits, rounds)) for rounds in (audit.store.rounds, *extended)]
    forms.append({NAME: root_document(audit.store.attributes)})
    unwritten = _reported(commit for commit in commits if commit.round > audit.copied.round)
    unwritten -= _reported(commit for commit in commits if commit.round <= audit.copied.round)
    unwritten = {f"{part}/{NAME}" for path in unwritten for part in (path, path.partition("/")[0])}
    for key, content in contents.items():
        if content is None and key in unwritten and key not in audit.sizes:
            audit.note(key, "it is not written, until the run goes on")
        elif content is None:
            audit.find(key, "it is missing")
        elif bytes(content) not in [form[key] for form in forms if key in form]:
            audit.find(key, "it is not what was written for this run")
    if extended:
        audit.note(f"commits/{NAME}", "arrays are not all described for more rounds, until it goes on")


def _arrays(audit: Audit, commits: Iterable[Commit], rounds: int) -> list[ArraySpec]:
    """All arrays that the records need, with room for `rounds` rounds."""
    splits = {commit.split.number: commit.split.examples for commit in commits if commit.split}
    return [
        *audit.schema.arrays(rounds + 1).values(),
        *(audit.schema.number(path, rounds + 1) for path in sorted(_reported(commits))),
        *(split_array(number, examples) for number, examples in sorted(splits.items())),
    ]


def _reported(commits: Iterable[Commit]) -> set[str]:
    """The paths of the metrics and scores that appear in commits."""
    return {path for commit in commits for path in numbers_of(commit) if path.partition("/")[0] in REPORTED}


def _being_extended(audit: Audit, described: int) -> set[int]:
    """The old and the new number of rounds while a writer extends the run; empty otherwise.

    `described` is the number in the document of `commits`. The writers' claims say which numbers are legitimate.
    """
    epochs = numbered(audit.place.names(LEASES))
    wanted = [claim.rounds for epoch in epochs if (claim := read_claim(audit.place, epoch))]
    fewest = min(audit.store.rounds, described)  # the run may have been extended since the store was opened
    return {fewest, wanted[-1]} if fewest in wanted[:-1] and fewest < wanted[-1] else set()


def strangers(audit: Audit) -> None:
    """Report the files that do not belong to the run: as notes where a writer may have left them."""
    for key in audit.sizes.keys() - audit.keys:
        if left := _left(audit, key):
            audit.note(key, left)
        else:
            audit.find(key, "it does not belong to the run")


def _left(audit: Audit, key: str) -> str | None:
    """Why a writer may have left a file; None for a file that no writer leaves."""
    if HALF_WRITTEN.fullmatch(key):
        return "it is half-written, by a writer that is at work or was killed"
    if any(audit.store.log.key(round) != key for round in numbered([key.removeprefix("commits/")])):
        return "its record is in a pack, too, and it goes when the run goes on"
    if parts := SPLIT.fullmatch(key):
        used = [commit.split.number for commit in audit.commits.values() if commit.split]
        return "no committed round uses this split yet" if int(parts[1] or 0) > max(used, default=-1) else None
    if key.partition("/")[0] in REPORTED and set(audit.rounds) - audit.commits.keys():
        return "it may be of a round whose record is damaged"
    found = array_of(audit.store.tensors.arrays, key)
    if found is None:
        return None
    array, index = found
    counts = [-(-size // max(1, length)) for size, length in zip(array.shape, array.file, strict=True)]
    inside = len(index) == len(counts) and all(i < max(count, 1) for i, count in zip(index, counts, strict=True))
    return _of_round(audit, array, index) if inside else None


def _of_round(audit: Audit, array: ArraySpec, index: tuple[int, ...]) -> str | None:
    """Why a file that no record needs may be there; None for one that no writer leaves.

    `index` are the numbers in its key.
    """
    held = array.held(index)
    if not any(audit.keeps(array, each) for each in held):
        return f"it is of round {index[0]}, which was pruned, and goes with the next pruning"
    if commit := audit.commits.get(index[0]):
        again = config_field(audit.store.attributes, "cohort_from") == "present"  # with who was left
        if array.by_partition and (again or {partition for _, partition in held} & {*commit.absent}):
            return f"it is of an update that round {index[0]} did not wait for, and may go"
        stored = any(commit.has_update(p) for _, p in held) if array.by_partition else commit.stored
        what = "an update" if array.by_partition else "the state"
        return None if stored else f"it is of {what} of round {index[0]}, which is not stored, and may go"
    state = "not committed" if index[0] > audit.newest else "lost"
    return f"it is of round {index[0]}, which is {state}"
