"""Verify records, claims and documents of a run, and find files that belong to none of its rounds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

import numpy as np

from roundweave.storage.errors import StoreDamaged, spans
from roundweave.storage.hierarchy.schema import COPIES, GROUPS, ROWS, ArraySpec, number_array, split_array
from roundweave.storage.hierarchy.zarr_format import (
    LARGEST,
    NAME,
    array_of,
    chunk_key,
    described_rows,
    documents,
    empty_chunk,
    read_chunk,
    root_document,
)
from roundweave.storage.parsing import numbered
from roundweave.storage.rounds import columns, log, pruned
from roundweave.storage.rounds.commits import JUDGEMENT, SECTION, Commit, read_section
from roundweave.storage.rounds.lease import LEASES, read_claim
from roundweave.storage.rounds.numbers import Numbers, round_numbers
from roundweave.storage.rounds.packs import columns_of, pack_key
from roundweave.storage.upkeep.verifying.audit import Audit
from roundweave.storage.values.hashing import bytes_digest

QUARANTINED = (log.ASIDE, pruned.ASIDE)
"""Match the names of quarantined records, which end in the beginning of a digest."""


HALF_WRITTEN = re.compile(r"(.+/)?\.[0-9a-f]{16}\.partial(/.+)?")


SPLIT = re.compile(rf"partitions/(?:([0-9]{{1,18}})/(?:{re.escape(NAME)}|c/0)|{re.escape(NAME)})")


COPIED = re.compile(rf"({'|'.join(COPIES)}|scores|round|committed|commits/{re.escape(NAME)})(/.+)?")
"""Matches the keys of copies of numbers in stores of earlier versions."""


def records(audit: Audit) -> None:
    """Verify that no commit record is missing, and that each is whole and the one that the next one follows."""
    for first, last in spans(({*range(max(audit.newest, 0) + 1)} | audit.shown) - {*audit.rounds}):
        others = "" if first == last else f", as are those up to commits/{last}.json"
        lost = "the rounds are lost" if others else "the round is lost"
        audit.find(f"commits/{first}.json", f"it is missing{others}, and {lost}")
    for round in audit.rounds:
        key = audit.store.log.key(round)
        audit.keys.add(key)
        if round not in audit.commits and audit.check(key, partial(audit.store.log.read, round)):
            audit.find(key, f"it is not the record of round {round} that the next one follows")
    for first in {*audit.store.log.misstated(audit.commits, not audit.store.is_old), *audit.store.log.torn}:
        audit.find(pack_key(first), "its line breaks or its columns are damaged; `roundweave resume` mends them")


def statements(audit: Audit) -> None:
    """Verify that the files that say which rounds were pruned, and of which examples, belong to it."""
    if audit.store.attributes.get("columns"):
        audit.check(columns.KEY, partial(columns.read_columns, audit.place, audit.store.attributes))
    audit.check(pruned.KEY, partial(pruned.check_pruned, audit.store.log))


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
    for key, parts in [(key, parts) for key in audit.sizes if (parts := SECTION.fullmatch(key))]:
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


def numbers(audit: Audit) -> None:
    """Compare the arrays that show numbers to plain zarr and xarray with the records.

    Compared are the rows of rounds of which `committed` tells, since a killed writer may have written others.
    """
    if audit.store.is_old:
        for key in filter(COPIED.fullmatch, audit.sizes):
            audit.keys.add(key)
            audit.note(key, "it is a copy of numbers as earlier versions wrote it, which is not read")
        return
    rows, shown = audit.store.rounds + 1, [round for round in audit.commits if round in audit.shown]
    for index in range(-(-rows // ROWS)):
        _compare(audit, number_array("round", rows), index, round_numbers(index), list(range(ROWS)))
    columns = {path: np.array(column) for path, column in columns_of(audit.commits.values()).items()}
    for spec, index, chunk in Numbers(list(audit.commits), columns).chunks(rows):
        _compare(audit, spec, index, chunk, [round % ROWS for round in shown if round // ROWS == index])
    for round in audit.shown - {*audit.rounds}:
        if round > audit.newest:
            audit.find(f"committed/c/{round // ROWS}", "it tells of rounds of which there is no record")
    if len(shown) < len(audit.commits):
        behind = min(audit.commits.keys() - audit.shown)
        audit.note("committed", f"it lacks round {behind} and what follows, until the run goes on")


def _compare(audit: Audit, spec: ArraySpec, index: int, recorded: np.ndarray, rows: list[int]) -> None:
    """Check that these rows of a stored chunk are what is `recorded`; NaN equals NaN."""
    key, empty = chunk_key(spec, (index,)), empty_chunk(spec)

    def compare() -> None:
        if (chunk := read_chunk(audit.place, spec, (index,))) is None:
            raise StoreDamaged("it is missing")
        if not np.array_equal(chunk[rows], recorded[rows], equal_nan=True):
            raise StoreDamaged("its rows are not what the records say")

    if key in audit.sizes or not np.array_equal(empty[rows], recorded[rows], equal_nan=True):
        audit.check(key, compare)


def descriptions(audit: Audit) -> None:
    """Verify all documents. Arrays have as many rows as `commits`, except while a writer extends the run.

    Those of metrics and scores that first appear after the rounds that arrays show may be unwritten.
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
    later, shown = (columns_of(c for c in commits if (c.round in audit.shown) == there) for there in (False, True))
    unwritten = later.keys() - shown.keys()
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
    """Return all arrays that the records need, with room for `rounds` rounds."""
    splits = {commit.split.number: commit.split.examples for commit in commits if commit.split}
    arrays = [split_array(number, examples) for number, examples in sorted(splits.items())]
    if audit.store.is_old:
        return [*audit.schema.tensors(rounds + 1).values(), *arrays]
    arrays += [number_array(path, rounds + 1) for path in sorted(columns_of(commits))]
    return [*audit.schema.arrays(rounds + 1).values(), *arrays]


def _being_extended(audit: Audit, described: int) -> set[int]:
    """Return the old and the new number of rounds while a writer extends the run; empty otherwise.

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
    """Return why a writer may have left a file; None for a file that no writer leaves."""
    if HALF_WRITTEN.fullmatch(key):
        return "it is half-written, by a writer that is at work or was killed"
    if any(audit.store.log.key(round) != key for round in numbered([key.removeprefix("commits/")])):
        return "its record is in a pack, too, and it goes when the run goes on"
    if parts := SPLIT.fullmatch(key):
        used = [commit.split.number for commit in audit.commits.values() if commit.split]
        return "no committed round uses this split yet" if int(parts[1] or 0) > max(used, default=-1) else None
    if key.partition("/")[0] in GROUPS and set(audit.rounds) - audit.commits.keys():
        return "it may be of a round whose record is damaged"
    found = array_of(audit.store.tensors.arrays, key)
    if found is None:
        return None
    array, index = found
    counts = [-(-size // max(1, length)) for size, length in zip(array.shape, array.file, strict=True)]
    inside = len(index) == len(counts) and all(i < max(count, 1) for i, count in zip(index, counts, strict=True))
    return _of_round(audit, array, index) if inside else None


def _of_round(audit: Audit, array: ArraySpec, index: tuple[int, ...]) -> str | None:
    """Return why a file that no record needs may be there; None for one that no writer leaves.

    `index` are the numbers in its key.
    """
    held = array.held(index)
    if not any(audit.keeps(array, each) for each in held):
        return f"it is of round {index[0]}, which was pruned, and goes with the next pruning"
    if commit := audit.commits.get(index[0]):
        again = audit.store.attributes.get("asks") == "present"  # with who was left
        if array.by_partition and (again or {partition for _, partition in held} & {*commit.absent}):
            return f"it is of an update that round {index[0]} did not wait for, and may go"
        stored = any(commit.has_update(p) for _, p in held) if array.by_partition else commit.stored
        what = "an update" if array.by_partition else "the state"
        return None if stored else f"it is of {what} of round {index[0]}, which is not stored, and may go"
    state = "not committed" if index[0] > audit.newest else "lost"
    return f"it is of round {index[0]}, which is {state}"
