"""Packs: files with the sealed records of many rounds, one record a line, in place of a file for each round.

A line before the records has the numbers of these rounds as columns, sealed as well. Packs of stores before
version 12 have no such line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add

from roundweave.storage.parsing import MOST_ROUNDS, numbered
from roundweave.storage.rounds.commits import Commit

ROUNDS = 100
"""The rounds of a pack. It begins with a multiple of this number, so a round tells its pack."""

LARGEST_PACK = 1 << 23
"""The most bytes of a pack, because one record is read with all others. Longer records stay in own files."""

COLUMNS = -1
"""The number of the line of columns among the rounds of a pack's lines."""

COLUMNS_BEGIN, COLUMNS_BYTES = b'{"bookkeeping/', 1 << 17
"""The beginning of that line, and the bytes of a pack that are read for it. It is seldom longer."""

PACK = re.compile(r"(0|[1-9][0-9]{0,6})-[0-9]{1,7}\.jsonl")

BEGINNING = re.compile(rb'\{"round": ([0-9]{1,7}), ')
"""Matches the beginning of a record, which has its round. Quotes within a record are escaped."""

TORN = re.compile(rb'\n|[^\n](?=\{"round": )')
"""Matches the separator of two records: a line break, or a damaged one."""


def first_of(round: int) -> int:
    """Return the first round of the pack that a round belongs to."""
    return round - round % ROUNDS


def pack_key(round: int) -> str:
    """Return the key of the pack that a round belongs to, such as ``commits/100-199.jsonl``."""
    first = first_of(round)
    return f"commits/{first}-{first + ROUNDS - 1}.jsonl"


def packs(names: Iterable[str]) -> set[int]:
    """Return the first rounds of all packs among the names of files."""
    found = ((name, int(parts[1])) for name in names if (parts := PACK.fullmatch(name)))
    return {first for name, first in found if pack_key(first) == f"commits/{name}" and first <= MOST_ROUNDS}


def recorded(names: Sequence[str]) -> list[int]:
    """Return the rounds with a record, whole or not, according to the names of files, ascending."""
    packed = (round for first in packs(names) for round in range(first, first + ROUNDS))
    return sorted({*numbered(names), *packed})


def is_aligned(content: bytes) -> bool:
    """Tell whether a pack has as many lines as rounds, with or without columns, and nothing after the last one."""
    return content.count(b"\n") == ROUNDS + content.startswith(COLUMNS_BEGIN) and content.endswith(b"\n")


def lines_of(first: int, content: bytes) -> dict[int, bytes]:
    """Return the records in a pack by round, and its columns as those of round `COLUMNS`, damaged ones included.

    If line breaks are missing or added, each record counts for the round that it names itself.
    """
    if is_aligned(content):
        lines = content.split(b"\n")[:-1]
        records = dict(enumerate(lines[-ROUNDS:], first))
        return records if len(lines) == ROUNDS else {COLUMNS: lines[0], **records}
    return {int(named[1]): part for part in TORN.split(content) if (named := BEGINNING.match(part))}


def row_of(commit: Commit) -> dict[str, float]:
    """Return the numbers of a round by path.

    Metrics are means over the updates that were accepted, by their examples.
    """
    weights = {partition: commit.updates[partition].weight for partition in commit.accepted}
    counts = {
        "accepted": len(weights),
        "refused": len(commit.updates) - len(weights),
        "absent": len(commit.absent),
    }
    counts |= {"examples": sum(weights.values())}
    row = {f"bookkeeping/{name}": float(count) for name, count in counts.items()}
    row["bookkeeping/seconds"] = commit.seconds
    if commit.score is not None:
        row |= {f"scores/{name}": float(n) for name, n in commit.score.row().items() if name != "examples"}
    metrics = {name: None for update in commit.updates.values() for name in update.metrics}
    # Metrics of held-out examples weigh as many as these examples.
    told = {p: update.metrics.get("own_examples", 0.0) for p, update in commit.updates.items()}
    own = told if "own_examples" in metrics else weights
    for name in metrics:
        numbers = {p: update.metrics[name] for p, update in commit.updates.items() if name in update.metrics}
        row[f"metrics/{name}"] = _mean(numbers, own if name.startswith("own_") else weights)
    return row


def _mean(numbers: Mapping[int, float], weights: Mapping[int, float]) -> float:
    """Return the mean of numbers by partition, by their weights; NaN if there are none."""
    # In the order of the partitions, for the same bits with every version of Python.
    there = {p: weights[p] for p, number in numbers.items() if p in weights and not math.isnan(number)}
    total = reduce(add, there.values(), 0.0)
    return reduce(add, (numbers[p] * weight for p, weight in there.items()), 0.0) / total if total else math.nan


def columns_of(commits: Iterable[Commit]) -> dict[str, list[float]]:
    """Return the numbers of some rounds by path, (round,); NaN if a round does not have one."""
    rows = list(map(row_of, commits))
    paths = sorted({path for row in rows for path in row})
    return {path: [row.get(path, math.nan) for row in rows] for path in paths}
