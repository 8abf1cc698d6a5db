"""What says that chunks of a run may lie in shards; they are found without asking."""

from __future__ import annotations

import json

from storage.hierarchy.shards import unpack_array
from storage.rounds.log import CommitLog
from storage.rounds.tensors import StoredTensors

KEY = "commits/packed.json"


def is_packed(log: CommitLog) -> bool:
    """Whether chunks of the run of a log may lie in shards."""
    return log.place.has(KEY)


def mark_packed(log: CommitLog) -> None:
    """Say that chunks may lie in shards, which comes before the first of them."""
    log.place.write(KEY, packed_content(log.run), durable=True)


def packed_content(run: str) -> bytes:
    """What is said of a run, by the digest of its attributes."""
    return json.dumps({"run": run}).encode()


def unpack(tensors: StoredTensors) -> None:
    """Give each chunk that is in a shard a content of its own again; the arrays are described anew."""
    if is_packed(tensors.log):
        for spec in tensors.arrays.values():
            unpack_array(tensors.place, spec)
        tensors.place.delete(KEY)
