"""The sealed record of what was pruned from a run. It tells pruned tensors from lost ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundweave.storage.errors import RoundMissing, StoreDamaged, spans
from roundweave.storage.hierarchy.schema import ArraySpec
from roundweave.storage.parsing import Partition, Round, mistakes_as
from roundweave.storage.rounds.log import CommitLog, Link, quarantine_file
from roundweave.storage.values.digests import sealed, unsealed

KEY = "commits/pruned.json"


ASIDE = re.compile(r"pruned-damaged-([0-9a-f]{12})\.json")
"""Matches the name of a quarantined record of this kind: the beginning of the digest of its bytes."""


@dataclass(frozen=True)
class PrunedRecord:
    """The stored record: spans of rounds, (round, partition) pairs, and the newest round then with its chain.

    `run` is the digest of the run's attributes.
    """

    run: str
    states: list[tuple[Round, Round]]
    updates: list[tuple[Round, Round]]
    carried: list[tuple[Round, Partition]]
    newest: Round
    chain: str


@dataclass(frozen=True)
class Pruned:
    """The rounds whose `states` were pruned, and those whose `updates` (with carries and matches) were pruned.

    `carried` are single updates of these rounds, (round, partition), that stay because their carry is in use.
    """

    states: frozenset[int] = frozenset()
    updates: frozenset[int] = frozenset()
    carried: frozenset[tuple[int, int]] = frozenset()

    def has_state(self, round: int) -> bool:
        """Tell whether the state of a round was not pruned."""
        return round not in self.states

    def has_update(self, round: int, partition: int | None = None) -> bool:
        """Tell whether a partition's update of a round was not pruned.

        Without a partition, tell whether none was.
        """
        return round not in self.updates or (round, partition) in self.carried

    def has_chunk(self, spec: ArraySpec, index: tuple[int, ...]) -> bool:
        """Tell whether a chunk of an array over rounds was not pruned."""
        return self.has_update(*index[:2]) if spec.by_partition else self.has_state(index[0])

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds of which anything was pruned."""
        return self.states | self.updates

    def until(self, last: int) -> Pruned:
        """Return the part about rounds up to `last`."""
        return Pruned(
            frozenset(round for round in self.states if round <= last),
            frozenset(round for round in self.updates if round <= last),
            frozenset(pair for pair in self.carried if pair[0] <= last),
        )


def there(log: CommitLog, pruned: Pruned, round: int) -> bool:
    """Tell whether the state of a round was stored and not pruned; False if its record is lost or damaged."""
    link = log.whole(round) if pruned.has_state(round) else None
    return link is not None and link.stored


def base_of(log: CommitLog, pruned: Pruned, round: int) -> int:
    """Return the last round up to this one whose state is stored. Later states are computed again from it."""
    return next((earlier for earlier in range(round, 0, -1) if there(log, pruned, earlier)), 0)


def has_updates(log: CommitLog, pruned: Pruned, round: int) -> bool:
    """Tell whether the updates of a round were stored and not pruned; False if its record is lost or damaged."""
    return pruned.has_update(round) and log.updates_stored(round)


def with_unwritten(log: CommitLog, pruned: Pruned, links: Mapping[int, Link]) -> Pruned:
    """Return what was pruned, and updates that were not stored according to the records in `links`, by round."""
    unwritten = [round for round, link in links.items() if not link.updates_stored and pruned.has_update(round)]
    commits = [log.parsed(round, links[round]) for round in unwritten]
    carried = {(commit.round, p) for commit in commits for p in commit.updates if commit.has_update(p)}
    return Pruned(pruned.states, pruned.updates | set(unwritten), pruned.carried | carried)


def absent(log: CommitLog, last: int) -> Pruned:
    """Return what was pruned of the rounds up to `last`, and which of their updates were never stored.

    Raises as `read_pruned` does.
    """
    pruned, record = _read(log)
    newest = record.newest if record else 0  # it also lists what was never stored of the rounds until then
    later = [round for round in log.rounds() if newest < round <= last]
    return with_unwritten(log, pruned.until(last), log.links(later))


def read_pruned(log: CommitLog) -> Pruned:
    """Return what was pruned from the run of a log. Raises `StoreDamaged` if the record of it is damaged."""
    return _read(log)[0]


def check_pruned(log: CommitLog) -> None:
    """Raise `StoreDamaged` unless the record fits this history and leaves everything that is needed to go on.

    If the record of the newest round of that time is damaged, nothing can be checked, and nothing is raised.
    """
    pruned, record = _read(log)
    if record is None:
        return
    newest = record.newest
    try:
        commit, chain = log.read(newest), log.chain(newest)
    except RoundMissing as error:
        raise StoreDamaged(f"{log.place}/{KEY}: it names round {newest}, which has no record") from error
    except StoreDamaged:
        return
    if chain != record.chain:
        raise StoreDamaged(f"{log.place}/{KEY}: it belongs to another history")
    carried = all(pruned.has_update(round, partition) for partition, round in commit.carry_from.items())
    # Updates since the last stored state are there, or were never stored.
    since = range(base_of(log, pruned, newest) + 1, newest + 1)
    again = all(pruned.has_update(round) or not log.updates_stored(round) for round in since)
    if not (carried and again and pruned.has_state(0) and pruned.has_state(newest)):
        raise StoreDamaged(f"{log.place}/{KEY}: it names as pruned what no pruning deletes")


def _read(log: CommitLog) -> tuple[Pruned, PrunedRecord | None]:
    """Return what was pruned, and the record of it; None if nothing was."""
    content = log.place.read(KEY)
    if content is None:
        return Pruned(), None
    advice = "restore it from a copy, or `roundweave resume` continues without it"
    what = f"{log.place}/{KEY} is no record of what was pruned"
    with mistakes_as(lambda error: StoreDamaged(f"{what} ({error}); {advice}")):
        record = unsealed(PrunedRecord, content)
        if record.run != log.run:
            raise ValueError("it belongs to another run")
        states, updates = (_rounds(each, record.newest) for each in (record.states, record.updates))
        return Pruned(states, updates, frozenset(record.carried)), record


def write_pruned(log: CommitLog, pruned: Pruned, newest: int) -> None:
    """Record what is pruned from the rounds up to `newest`, and the chain of that round's record."""
    states, updates = spans(pruned.states), spans(pruned.updates)
    record = PrunedRecord(log.run, states, updates, sorted(pruned.carried), newest, log.chain(newest))
    log.place.write(KEY, sealed(record), durable=True)


def forget_pruned(log: CommitLog, last: int) -> None:
    """Remove the rounds after `last` from the record, because they are trained again.

    A damaged record is quarantined. The tensors that it listed count as lost from then on.
    """
    if not log.place.has(KEY):
        return
    try:
        write_pruned(log, absent(log, last), last)
    except StoreDamaged:
        quarantine_file(log.place, KEY, "pruned-damaged")


def _rounds(value: Sequence[tuple[int, int]], newest: int) -> frozenset[int]:
    """Return the rounds of spans (first, last).

    Raises `ValueError` unless spans ascend and end by the newest round.
    """
    ends = [end for span in value for end in span]
    if ends != sorted(ends) or ends[-1:] > [newest]:
        raise ValueError("it names rounds after its own, or one twice")
    return frozenset(round for first, last in value for round in range(first, last + 1))
