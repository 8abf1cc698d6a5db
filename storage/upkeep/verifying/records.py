"""Verify what lies in ``commits/``: records, quarantined records, what was pruned or copied, writers' claims."""

from __future__ import annotations

import hashlib
from functools import partial

from storage.errors import StoreDamaged, spans
from storage.parsing import numbered
from storage.places.base import Place
from storage.rounds import log, numbers, pruned
from storage.rounds.lease import LEASES, read_claim
from storage.upkeep.verifying.stored import Finding, Looked, Stored, refused

ASIDES = (log.ASIDE, pruned.ASIDE)
"""Match the names of quarantined records, which end in the beginning of a digest."""


def records(stored: Stored) -> Looked:
    """Verify that no commit record is missing, and that each is whole and the one that the next one follows."""
    gaps = spans(set(range(stored.newest)) - set(stored.rounds) if stored.rounds else {0})
    missing = [Finding(f"commits/{first}.json", _missing(first, last)) for first, last in gaps]
    other = [_damage(stored, round) for round in stored.unread]
    return Looked(frozenset(f"commits/{round}.json" for round in stored.rounds), (*missing, *other))


def _missing(first: int, last: int) -> str:
    if first == last:
        return "it is missing, and the round is lost"
    return f"it is missing, as are those up to commits/{last}.json, and the rounds are lost"


def _damage(stored: Stored, round: int) -> Finding:
    key = f"commits/{round}.json"
    unread = refused(stored.place, key, partial(stored.store.log.read, round))
    return unread or Finding(key, "it is not the record that the next one follows")


def said(stored: Stored) -> Looked:
    """Verify that the files that say which rounds were pruned and copied belong to this history."""
    checks = {
        pruned.KEY: partial(pruned.check_pruned, stored.store.log),
        numbers.KEY: partial(numbers.check_copied, stored.store.log),
    }
    findings = [refused(stored.place, key, check) for key, check in checks.items()]
    return Looked(frozenset(checks), tuple(filter(None, findings)))


def claims(stored: Stored) -> Looked:
    """Verify the writers' claims: those that are stored, and those whose epochs appear in commits."""
    epochs = numbered(key.removeprefix(f"{LEASES}/") for key in stored.sizes if key.startswith(LEASES))
    last = max([0, *epochs, *(commit.epoch for commit in stored.commits.values())])
    keys = {epoch: f"{LEASES}/{epoch}.json" for epoch in {*epochs, *range(1, min(last, len(epochs) + 99) + 1)}}
    missing = [Finding(key, "it is missing") for epoch, key in keys.items() if epoch not in epochs]
    other = [
        Finding(keys[epoch], "it is not the claim that a writer wrote")
        for epoch in epochs
        if read_claim(stored.place, epoch) is None
    ]
    return Looked(frozenset(keys.values()), (*missing, *other))


def quarantined(stored: Stored) -> Looked:
    """Verify that each quarantined record has the digest that its name says."""
    matched = ((key, name.fullmatch(key.removeprefix("commits/"))) for key in stored.sizes for name in ASIDES)
    digests = {key: parts.groups()[-1] for key, parts in matched if parts}
    checks = {key: partial(_check_aside, stored.place, key, digest) for key, digest in digests.items()}
    unread = [refused(stored.place, key, check) for key, check in checks.items()]
    return Looked(frozenset(digests), tuple(filter(None, unread)))


def _check_aside(place: Place, key: str, digest: str) -> None:
    if not hashlib.sha256(place.read(key) or b"").hexdigest().startswith(digest):
        raise StoreDamaged("it is not the record that was quarantined under this name")
