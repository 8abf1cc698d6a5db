"""What was let go of a run, in a sealed record: so what was pruned is told from what was lost."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from storage.errors import RoundMissing, StoreDamaged, spans
from storage.hierarchy.schema import ArraySpec
from storage.parsing import Partition, Round, validated
from storage.rounds.log import CommitLog, quarantine_file
from storage.values.digests import text_digest

KEY = "commits/pruned.json"


ASIDE = re.compile(r"pruned-damaged-([0-9a-f]{12})\.json")
"""The name of a damaged one that was quarantined: the beginning of the SHA-256 of its bytes."""


@dataclass(frozen=True)
class Told:
    """What a record says: spans of rounds, pairs of a round and a partition, the newest round and its chain."""

    states: list[tuple[Round, Round]]
    updates: list[tuple[Round, Round]]
    carried: list[tuple[Round, Partition]]
    newest: Round
    chain: str
    seal: str


RECORD = TypeAdapter(Told)


@dataclass(frozen=True)
class Pruned:
    """The rounds whose states were let go, and those whose updates and carries were.

    `carried` are those updates of these rounds, (round, partition), that stay for what their partitions carry.
    """

    states: frozenset[int] = frozenset()
    updates: frozenset[int] = frozenset()
    carried: frozenset[tuple[int, int]] = frozenset()

    def has_state(self, round: int) -> bool:
        """Whether the state of a round stays."""
        return round not in self.states

    def has_update(self, round: int, partition: int | None = None) -> bool:
        """Whether a partition's update of a round stays, or those of all."""
        return round not in self.updates or (round, partition) in self.carried

    def has_chunk(self, spec: ArraySpec, index: tuple[int, ...]) -> bool:
        """Whether a chunk of an array over rounds stays."""
        return self.has_update(*index[:2]) if spec.by_partition else self.has_state(index[0])

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds of which something was let go."""
        return self.states | self.updates

    def until(self, last: int) -> Pruned:
        """What of it is of rounds up to the last."""
        return Pruned(
            frozenset(round for round in self.states if round <= last),
            frozenset(round for round in self.updates if round <= last),
            frozenset(pair for pair in self.carried if pair[0] <= last),
        )


def there(log: CommitLog, pruned: Pruned, round: int) -> bool:
    """Whether the state of a round was stored, and stays; of one whose record is lost nothing is known."""
    try:
        return pruned.has_state(round) and log.read(round).stored
    except (RoundMissing, StoreDamaged):
        return False


def base_of(log: CommitLog, pruned: Pruned, round: int) -> int:
    """The last round up to this one whose state is there, and from which later ones are made again."""
    return next((earlier for earlier in range(round, 0, -1) if there(log, pruned, earlier)), 0)


def read_pruned(log: CommitLog) -> Pruned:
    """What was let go of the run of a log; raises `StoreDamaged` for a record that was not written so."""
    return _read(log)[0]


def check_pruned(log: CommitLog) -> None:
    """Raise `StoreDamaged` unless what was let go is recorded for this history, and leaves what going on needs.

    Where the record of the newest round then is damaged, that cannot be told.
    """
    pruned, newest, chain = _read(log)
    if newest is None:
        return
    try:
        commit, link = log.read(newest), log.chain(newest)
    except RoundMissing as error:
        raise StoreDamaged(f"{log.place}/{KEY}: round {newest}, which it tells of, has no record") from error
    except StoreDamaged:
        return
    if link != chain:
        raise StoreDamaged(f"{log.place}/{KEY}: it is of another history")
    carried = (pruned.has_update(round, partition) for partition, round in commit.carry_from.items())
    stays = pruned.has_state(0) and pruned.has_state(newest) and _can_be_made(log, pruned, newest)
    if not (stays and all(carried)):
        raise StoreDamaged(f"{log.place}/{KEY}: it tells that went what no pruning lets go")


def _can_be_made(log: CommitLog, pruned: Pruned, round: int) -> bool:
    """Whether the state of a round is there, or the updates that it is made again from."""
    return all(map(pruned.has_update, range(base_of(log, pruned, round) + 1, round + 1)))


def _read(log: CommitLog) -> tuple[Pruned, int | None, str]:
    """What was let go, the newest round then, None where nothing was, and the chain of its record."""
    content = log.place.read(KEY)
    if content is None:
        return Pruned(), None, ""
    try:
        value = dict(vars(validated(RECORD, bytes(content))))
        del value["seal"]
        if bytes(content) != _content(log, value):
            raise ValueError("it is of another run, or was changed")
        newest = value["newest"]
        carried = frozenset(value["carried"])
        pruned = Pruned(_rounds(value["states"], newest), _rounds(value["updates"], newest), carried)
        return pruned, newest, value["chain"]
    except ValueError as error:
        raise StoreDamaged(
            f"{log.place}/{KEY} is no record of what was pruned ({error}); restore it from a copy, "
            "or `roundweave resume` goes on without it"
        ) from error


def write_pruned(log: CommitLog, pruned: Pruned, newest: int) -> None:
    """Record what is let go of the rounds up to the newest, whose chain the record names."""
    value: dict[str, Any] = {
        "states": spans(pruned.states),
        "updates": spans(pruned.updates),
        "carried": sorted(map(list, pruned.carried)),
        "newest": newest,
        "chain": log.chain(newest),
    }
    log.place.write(KEY, _content(log, value), durable=True)


def forget_pruned(log: CommitLog, last: int) -> None:
    """Take the rounds after the last out of the record, as they are done again.

    A record that is damaged is quarantined: what it told of is lost.
    """
    if not log.place.has(KEY):
        return
    try:
        write_pruned(log, read_pruned(log).until(last), last)
    except StoreDamaged:
        quarantine_file(log.place, KEY, "pruned-damaged")


def _content(log: CommitLog, value: dict[str, Any]) -> bytes:
    """The record as it is stored, sealed as one of the run of this log."""
    seal = text_digest("\n".join((log.run, "pruned", json.dumps(value, sort_keys=True))))
    return json.dumps(value | {"seal": seal}).encode()


def _rounds(value: Sequence[tuple[int, int]], newest: int) -> frozenset[int]:
    """The rounds of these spans, which ascend; those of a run that there can be come up to its newest."""
    ends = [end for span in value for end in span]
    if ends != sorted(ends) or ends[-1:] > [newest]:
        raise ValueError("it tells of rounds to come, or twice of one")
    return frozenset(round for first, last in value for round in range(first, last + 1))
