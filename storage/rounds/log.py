"""The log of a run: commit records, linked by a chain of digests. Each is created once and never changed."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from roundweave.storage.errors import NotARun, PlaceError, RoundMissing, StoreDamaged, StoreError, WriterFenced
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.hierarchy.zarr_format import LARGEST
from roundweave.storage.parsing import mistakes_as, parse
from roundweave.storage.places.base import Place, together
from roundweave.storage.rounds import packs
from roundweave.storage.rounds.commits import Commit, check_columns, check_names
from roundweave.storage.values.hashing import bytes_digest, text_digest

SEALED = re.compile(r'(\{.*), "before": "([0-9a-f]*)", "chain": "([0-9a-f]{64})"\}', re.DOTALL)
"""Matches a stored record: its text, and its last two members, the chain of the record before it and its own."""


UNSTORED, NO_UPDATES = ', "stored": false, "seconds": ', ', "updates_stored": false, "stored": '
"""The members of a record by which it says that the state, or the updates, were not stored.

They cannot occur in its texts, in which quotes are escaped.
"""


ASIDE = re.compile(r"damaged-([0-9]{1,18})-([0-9a-f]{12})\.json")
"""Matches the name of a quarantined record: its round, and the beginning of the digest of its bytes."""


@dataclass(frozen=True)
class Link:
    """A sealed record: its text, the chain of the record before it, and its own chain."""

    text: str
    before: str
    chain: str

    @property
    def stored(self) -> bool:
        """Whether the state of the round was stored.

        The text is searched, because parsing a long record is slow.
        """
        return UNSTORED not in self.text

    @property
    def updates_stored(self) -> bool:
        """Whether the updates of the round were stored."""
        return NO_UPDATES not in self.text

    @property
    def content(self) -> str:
        """The record as it is stored."""
        return f'{self.text[:-1]}, "before": "{self.before}", "chain": "{self.chain}"}}'


FIRST = Link("", "", "")
"""Stands for the missing record before the first one."""


class CommitLog:
    """The commit records of the run at a place, one JSON file for each round, or a pack for many rounds.

    The chain seals a record: it is the digest of `run`, the round, the chain of the record before, and the
    record's own text. Reading a record verifies its chain, so one chain vouches for the whole history before it.
    `run` is the digest of the run's attributes. Records must fit the tensors and partitions of the `schema`.
    `torn` are the first rounds of packs that were read and have damaged line breaks, or columns that contradict
    their records.
    """

    def __init__(self, place: Place, run: str, schema: Schema) -> None:
        self.place = place
        self.run = run
        self.schema = schema
        self._tensors = schema.state(1).keys()
        self._created = -1, FIRST
        self._packs: set[int] = set()  # first rounds of the packs that are known
        self._packed = 0  # rounds before this one are in packs, or stay in files of their own
        self._lines = functools.lru_cache(place.at_once + 1)(self._read_pack)
        self.torn: set[int] = set()

    def rounds(self, names: Sequence[str] | None = None) -> list[int]:
        """Return the rounds with a record, whole or not, ascending. `names` are the known names in ``commits``."""
        names = self.place.names("commits") if names is None else names
        rounds = packs.recorded(names)
        if rounds and len(rounds) <= rounds[-1]:  # some are lost, or were packed while the names were read
            names = [*names, *self.place.names("commits")]
            rounds = packs.recorded(names)
        self._packs |= packs.packs(names)
        return rounds

    def last(self) -> int:
        """Return the last round with a record, whole or not. Raises `NotARun` if there is none."""
        if rounds := self.rounds():
            return rounds[-1]
        raise NotARun(f"{self.place} has no commit record; restore them from a copy, or start the run again")

    def newest(self, rounds: Sequence[int]) -> int | None:
        """Return the newest of the log's `rounds` whose record is whole; None if there are none.

        Raises `StoreDamaged` if there are records but none belongs to the run's attributes.
        """
        newest = next((round for round in reversed(rounds) if self.whole(round)), None)
        if newest is None and rounds:
            raise StoreDamaged(
                f"{self.place}: no commit record belongs to the attributes in zarr.json; "
                "one or the other was changed, restore it from a copy"
            )
        return newest

    def has(self, round: int) -> bool:
        """Tell whether there is a record of a round."""
        return self.place.has(_key(round)) or self.place.has(packs.pack_key(round))

    def key(self, round: int) -> str:
        """Return the key of the file that has the record of a round, or should have it."""
        return packs.pack_key(round) if packs.first_of(round) in self._packs else _key(round)

    def read(self, round: int) -> Commit:
        """Return the record of a round. Raises `RoundMissing`, and `StoreDamaged` if the record is damaged."""
        return self.parsed(round, self._link(round))

    def whole(self, round: int) -> Link | None:
        """Return the sealed record of a round; None if it is missing or damaged."""
        try:
            return self._link(round)
        except PlaceError:
            raise
        except StoreError:
            return None

    def updates_stored(self, round: int) -> bool:
        """Tell whether all updates of a round were stored; False if its record is lost or damaged."""
        link = self.whole(round)
        return link is not None and link.updates_stored

    def chain(self, round: int) -> str:
        """Return the chain of a round's record, which vouches for the history before it. Raises as `read`."""
        return self._link(round).chain

    def parsed(self, round: int, link: Link) -> Commit:
        """Return the commit in the sealed record of a round. Raises `StoreDamaged` if its text is invalid."""
        with mistakes_as(lambda error: StoreDamaged(f"{self._named(round)} is no commit record: {error}")):
            commit = Commit.from_json(link.text)
            self._check(round, commit)
        return commit

    def _check(self, round: int, commit: Commit) -> None:
        """Raise `ValueError` for a record that names rounds, partitions or tensors that the run does not have."""
        in_flight = commit.server.in_flight if commit.server else {}
        if commit.round != round:
            raise ValueError(f"it is the record of round {commit.round}")
        if max([*commit.carry_from.values(), *commit.begins]) > round:
            raise ValueError("it names rounds after its own")
        check_names(commit)
        if max([0, *commit.updates, *commit.absent, *commit.carry_from, *in_flight]) >= self.schema.partitions:
            raise ValueError(f"it names a partition beyond the {self.schema.partitions} of the run")
        if commit.tensors.keys() != self._tensors:
            raise ValueError("it names other tensors than the run has")

    def commit(self, at: int | Commit) -> Commit:
        """Return the record of a round by its number. A commit is returned unchanged."""
        return at if isinstance(at, Commit) else self.read(at)

    def missing(self, round: int, rounds: Sequence[int]) -> RoundMissing:
        """Return the error for a round that is not among the committed `rounds`."""
        if not rounds:
            what_is_there = "it has none"
        elif rounds[0] < round < rounds[-1]:
            what_is_there = f"{_key(round)} is missing, and the round is lost"
        else:
            what_is_there = f"it has rounds {rounds[0]} to {rounds[-1]}"
        return RoundMissing(f"no committed round {round} in {self.place}; {what_is_there}")

    def links(self, rounds: Sequence[int]) -> dict[int, Link]:
        """Return the sealed records of the ascending `rounds`, by round.

        Missing and damaged records are left out, and records whose chain differs from the one in the next record.
        """
        links: dict[int, Link] = {}
        files = [list(same) for _, same in groupby(rounds, self.key)]
        whole = together(self.place, lambda file: {round: self.whole(round) for round in file}, files)
        read = {round: link for file in whole for round, link in file.items()}
        for round in reversed(rounds):
            link, after = read[round], links.get(round + 1)
            if link and (after is None or after.before == link.chain):
                links[round] = link
        return dict(reversed(links.items()))

    def columns(self, first: int) -> Mapping[str, list[float]] | None:
        """Return the numbers of a pack's rounds by path, (round,); None if they are missing or damaged."""
        if first not in self._packs or first in self.torn:
            return None
        part = self.place.read_part(packs.pack_key(first), 0, packs.COLUMNS_BYTES)
        line, ends, _ = bytes(part or b"").partition(b"\n")
        if not ends and part:  # the line is longer
            line = (self._lines(first) or {}).get(packs.COLUMNS, b"")
        if not line.startswith(packs.COLUMNS_BEGIN):
            return None
        with suppress(ValueError):
            if link := self._sealed(first, line):
                columns = parse(dict[str, list[float]], link.text)
                check_columns(columns)
                if {packs.ROUNDS} == {*map(len, columns.values())}:
                    return columns
        self.torn.add(first)
        return None

    def misstated(self, commits: Mapping[int, Commit], lacking: bool) -> list[int]:
        """Return the first rounds of packs whose columns contradict their records.

        If `lacking`, packs without columns are included. `commits` are all whole records by round.
        """
        wrong = []
        for first in sorted(self._packs):
            rounds, line = range(first, first + packs.ROUNDS), (self._lines(first) or {}).get(packs.COLUMNS)
            if commits.keys() >= {*rounds} and (line or lacking):
                columns = self._columns(first, [commits[round] for round in rounds])
                wrong += [first] * (line != columns.content.encode())
        return wrong

    def _columns(self, first: int, commits: Iterable[Commit]) -> Link:
        """Return the sealed columns of a pack's rounds, which follow its last record."""
        text, before = json.dumps(packs.columns_of(commits)), self.chain(first + packs.ROUNDS - 1)
        return Link(text, before, self._chain(first, before, text))

    def create(self, commit: Commit, before: Link | None = None) -> Commit:
        """Write the record of a round, which makes the round exist; or return the equal record that is there.

        A round may be committed twice. A worker can die after its commit, so that its task runs again. The last
        task of a killed run can commit while the run is being resumed. `before` is the result of `link_before`, if
        it is known. A record that an earlier writer made after its lease was over is replaced. Raises
        `WriterFenced` if the existing record has other bits or comes from a later writer.
        """
        text, before = commit.to_json(), before or self.link_before(commit.round)
        link = Link(text, before.chain, self._chain(commit.round, before.chain, text))
        sealed = link.content.encode()
        if self.place.create(_key(commit.round), sealed):
            self._created = commit.round, link
            return commit
        link = self._link(commit.round)
        existing = self.parsed(commit.round, link)
        same = existing.identity() == commit.identity() and link.before == before.chain
        if existing.epoch > commit.epoch or (existing.epoch == commit.epoch and not same):
            raise WriterFenced(
                f"round {commit.round} of {self.place} was committed by another writer ({existing.token}); "
                "this one stops"
            )
        if same:
            return existing
        self.place.write(_key(commit.round), sealed)
        return commit

    def pack(self, safe: int) -> bool:
        """Put the records of rounds before `safe` into packs, and delete their own files. Tell whether any is new.

        All of these rounds survive a power loss already. A pack is synced and read again before anything is
        deleted, so each record is in one of both at any time. If one record of a hundred is damaged or missing,
        all of them stay in files of their own. Only the holder of the lease may call this.
        """
        firsts = range(self._packed, packs.first_of(safe), packs.ROUNDS)
        names = set(self.place.names("commits")) if firsts else set()
        self._packs |= packs.packs(names)
        known = len(self._packs)
        for first in firsts:
            rounds = range(first, first + packs.ROUNDS)
            own = [name for name in (f"{round}.json" for round in rounds) if name in names]
            if first not in self._packs and len(own) == len(rounds):
                self._write_pack(first, self.links(rounds))
            # After an interrupted packing only some files are left. A lost task may have committed a round again:
            # that record goes, too, because the pack's record counts.
            if own and first in self._packs and len(self.links(rounds)) == len(rounds):
                self.place.delete_names("commits", own)
        self._packed = max(self._packed, packs.first_of(safe))
        return len(self._packs) > known

    def _write_pack(self, first: int, links: Mapping[int, Link]) -> None:
        if len(links) < packs.ROUNDS:
            return
        lines = [
            self._columns(first, (self.parsed(round, link) for round, link in links.items())),
            *links.values(),
        ]
        content = "".join(f"{line.content}\n" for line in lines).encode()
        if len(content) <= packs.LARGEST_PACK:
            self.place.write(packs.pack_key(first), content, durable=True)
            self._packs.add(first)

    def unfit(self, after: int) -> list[int]:
        """Return the rounds whose records cannot be used: those after `after`, and those that are not whole."""
        rounds = self.rounds()
        whole = self.links(rounds)
        return [round for round in rounds if round > after or round not in whole]

    def quarantine(self, rounds: Sequence[int]) -> None:
        """Take the records of these rounds out of the log. They stay under other names, as evidence.

        Packs with one of them, and packs with damaged line breaks, are replaced by a file for each round.
        """
        apart = self._packs & {*map(packs.first_of, rounds), *self.torn}
        for round in (round for first in apart for round in range(first, first + packs.ROUNDS)):
            if content := self._content(round):
                self.place.write(_key(round), content)
        self.place.flush()
        for first in apart:
            self.place.delete(packs.pack_key(first))
        self._packs -= apart
        self._lines.cache_clear()
        for round in rounds:
            quarantine_file(self.place, _key(round), f"damaged-{round}")

    def link_before(self, round: int) -> Link:
        """Return the sealed record that the record of a round follows: the last one before it, or `FIRST`."""
        created, link = self._created
        if created == round - 1:
            return link
        with suppress(RoundMissing):
            return self._link(round - 1)
        earlier = [number for number in self.rounds() if number < round]
        return self._link(earlier[-1]) if earlier else FIRST

    def _content(self, round: int) -> bytes | memoryview | None:
        """Return the sealed record of a round; empty if its pack lacks it, and None if there is no file of it."""
        first = packs.first_of(round)
        if first in self._packs:
            if (lines := self._lines(first)) is not None:
                return lines.get(round, b"")
            self._packs.discard(first)  # a later writer took it apart
            self._lines.cache_clear()
        content = self.place.read(_key(round), most=LARGEST)
        if content is None and self.place.has(packs.pack_key(round)):  # it was packed since the log was listed
            self._packs.add(first)
            return self._content(round)
        return content

    def _read_pack(self, first: int) -> dict[int, bytes] | None:
        if (content := self.place.read(packs.pack_key(first), most=LARGEST)) is None:
            return None
        if not packs.is_aligned(pack := bytes(content)):
            self.torn.add(first)
        return packs.lines_of(first, pack)

    def _named(self, round: int) -> str:
        """Return the name of a record's file in messages, and its place in a pack."""
        line = f": its record of round {round}" if packs.first_of(round) in self._packs else ""
        return f"{self.place}/{self.key(round)}{line}"

    def _link(self, round: int) -> Link:
        """Return the sealed record of a round, verified. Raises `RoundMissing` and `StoreDamaged`."""
        content = self._content(round)
        if content is None:
            raise self.missing(round, self.rounds())
        return self._verified(round, content)

    def _verified(self, round: int, content: bytes | memoryview) -> Link:
        link = self._sealed(round, content)
        if link is None:
            raise StoreDamaged(
                f"{self._named(round)} is no commit record, or not the one that was written for this round "
                "of this run; restore it from a copy, or `roundweave resume` continues without it"
            )
        return link

    def _sealed(self, round: int, content: bytes | memoryview) -> Link | None:
        """Return the link that these bytes seal; None if they were changed."""
        parts = SEALED.fullmatch(str(content, "utf-8", "replace"))
        link = parts and Link(parts[1] + "}", parts[2], parts[3])
        return link if link and self._chain(round, link.before, link.text) == link.chain else None

    def _chain(self, round: int, before: str, text: str) -> str:
        return text_digest("\n".join((self.run, str(round), before, text)))


def quarantine_file(place: Place, key: str, name: str) -> None:
    """Rename a damaged record to ``<name>-<beginning of its digest>.json``. Raises `StoreDamaged` for no file."""
    content = place.read(key)
    if content is None:
        if key not in (f"commits/{each}" for each in place.names("commits")):
            return  # a pack lacks the record, or a later writer removed it
        raise StoreDamaged(f"{place}: {key} is no file; take it away, and begin again")
    place.write(f"commits/{name}-{bytes_digest(content)[:12]}.json", content, durable=True)
    place.delete(key)


def quarantined_rounds(names: Iterable[str]) -> list[int]:
    """Return the rounds of quarantined records, ascending, among the names of files."""
    return sorted({int(parts[1]) for parts in map(ASIDE.fullmatch, names) if parts})


def _key(round: int) -> str:
    return f"commits/{round}.json"
