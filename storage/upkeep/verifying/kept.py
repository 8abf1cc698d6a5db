"""Verifying what says that a run was pruned or packed: it is of this history, and of nothing that must stay."""

from __future__ import annotations

from functools import partial

from storage.errors import StoreDamaged
from storage.rounds import packed, pruned
from storage.upkeep.verifying.stored import Looked, Stored, refused


def kept(stored: Stored) -> Looked:
    """The record of what was pruned, and that of packing."""
    checks = {
        pruned.KEY: partial(pruned.check_pruned, stored.store.log),
        packed.KEY: partial(_check_packed, stored),
    }
    findings = [refused(stored.place, key, check) for key, check in checks.items()]
    return Looked(frozenset(checks), tuple(filter(None, findings)))


def _check_packed(stored: Stored) -> None:
    content = stored.place.read(packed.KEY)
    if content is None and stored.shards:
        raise StoreDamaged(f"it is missing, where there is {min(stored.shards)}")
    if content is not None and bytes(content) != packed.packed_content(stored.store.log.run):
        raise StoreDamaged("it is not what was written for this run")
