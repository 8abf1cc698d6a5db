"""What is recorded of a stored run: read from its attributes, its records and its lease, never from tensors."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from storage.errors import NotARun
from storage.places.addresses import Where
from storage.places.base import Place
from storage.places.schemes import place_of
from storage.rounds.commits import Commit
from storage.rounds.lease import read_lease
from storage.rounds.log import Link
from storage.rounds.numbers import History
from storage.rounds.pruned import Pruned
from storage.rounds.store import RoundStore
from storage.runs.attributes import checked_attributes
from storage.runs.names import recorded_name, run_name


class RecordedRun:
    """What a stored run says of itself, as it was when it was opened or last refreshed."""

    def __init__(self, where: Where | Place) -> None:
        self._place = place_of(where)
        self.refresh()

    def refresh(self) -> Self:
        """Look again: the same view, with the rounds that came since."""
        self._store = RoundStore(self._place)
        told = checked_attributes(self._store.attributes, self._store.place)
        self._config, self._created = self._store.attributes["config"], told.created
        self._algorithm = recorded_name(self._config["algorithm"]["name"])
        self._attributes = {"algorithm": "", "data": asdict(told.data), "versions": {}} | self._store.attributes
        self._attributes["data"] = asdict(told.data) | self._attributes["data"]
        shelf = self._store.shelf
        self._rounds, self._done = shelf.rounds, shelf.newest
        self._damaged = [round for round in shelf.aside if round in self._rounds or round > self.done]
        self._lease = read_lease(self._place)
        self._commits: dict[int, Commit] = {}
        self._links: dict[int, Link] | None = None
        self._numbers: History | None = None
        return self

    @property
    def address(self) -> str:
        """Where it is, as text: a path, or ``scheme://…``."""
        return self._store.address

    @property
    def path(self) -> Path:
        """Its folder; raises `UsageError` where it is not on a disk of this machine."""
        return self._store.path

    @property
    def name(self) -> str:
        """The run's name under its root."""
        return run_name(self.address)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration it was started with."""
        return dict(self._config)

    @property
    def algorithm(self) -> str:
        """The name of its algorithm, ``FILE.py:function`` of the user's; ``merge`` where networks were merged."""
        return self._algorithm

    @property
    def attributes(self) -> dict[str, Any]:
        """All that was recorded at its start: config, algorithm, data, fingerprint, versions."""
        return self._attributes

    @property
    def created(self) -> float:
        """Seconds since the epoch."""
        return self._created

    @property
    def rounds(self) -> int:
        """How many rounds it is to have, as who wrote last was told."""
        told = self._lease.rounds if self._lease else 0
        return max(told, self._done or 0) if told else self._store.rounds

    @property
    def partitions(self) -> int:
        """Into how many partitions its examples are split."""
        return self._store.schema.partitions

    @property
    def done(self) -> int:
        """The last round whose record is whole; 0 is the initial state."""
        if self._done is None:
            raise NotARun(f"{self.address} has no committed round; start the run again")
        return self._done

    @property
    def committed(self) -> list[int]:
        """The committed rounds whose records are whole, ascending; each record is verified."""
        return list(self._whole())

    @property
    def pruned(self) -> Pruned:
        """Of which rounds states and updates were let go, as it is recorded now."""
        return self._store.tensors.pruned()

    @property
    def absent(self) -> Pruned:
        """Of which rounds states and updates are not there: let go, or of states never stored."""
        pruned, links = self.pruned, self._whole()
        return replace(pruned, states=pruned.states | {round for round, link in links.items() if not link.stored})

    @property
    def kept(self) -> list[int]:
        """The committed rounds whose states are there."""
        return list(filter(self.absent.has_state, self.committed))

    @property
    def lost(self) -> list[int]:
        """The rounds without a whole record; those after `done` are done again when the run goes on."""
        before = set(range(self.done)) - set(self.committed)
        return sorted(before | {round for round in self._rounds if round > self.done})

    @property
    def digest(self) -> str:
        """The digest of the last committed state."""
        return self._commit(self.done).state

    @property
    def chain(self) -> str:
        """The chain of the last record: this line vouches for the whole history."""
        return self._store.log.chain(self.done)

    @property
    def stop(self) -> str | None:
        """Why the run ended before its last round, None where it did not."""
        return self._commit(self.done).stop

    @property
    def failure(self) -> str | None:
        """Why the last writer of the run failed, None where it did not."""
        return self._lease.failure if self._lease else None

    @property
    def damaged(self) -> list[int]:
        """The rounds that were found damaged when the run went on, and were done again."""
        return self._damaged

    @property
    def status(self) -> str:
        """``complete``, ``running``, ``failed`` or ``interrupted``: read from the store alone."""
        if self._lease and self._lease.fresh:
            return "running"
        if self.done >= self.rounds or self.stop:
            return "complete"
        return "failed" if self.failure else "interrupted"

    @property
    def scores(self) -> list[str]:
        """The names of its scores besides the loss."""
        paths = (path.partition("/") for path in self._history.paths())
        return [name for group, _, name in paths if group == "scores" and name != "loss"]

    @property
    def _history(self) -> History:
        """The numbers of all rounds."""
        if self._numbers is None:
            done = self.done
            rounds = [round for round in self._rounds if round <= done]
            self._numbers = History(self._store.log, self._store.schema, rounds)
        return self._numbers

    @property
    def tensors(self) -> list[str]:
        """The names that ``run[name]`` knows; a parameter or buffer may drop its group."""
        return list(self._store.schema.state(1))

    def _whole(self) -> dict[int, Link]:
        """The whole records of the committed rounds, ascending."""
        if self._links is None:
            done = self.done
            self._links = self._store.log.links([round for round in self._rounds if round <= done])
        return self._links

    def _commit(self, round: int) -> Commit:
        """The record of a round, read once."""
        if round not in self._rounds:
            raise self._store.log.missing(round, self._rounds)
        if round not in self._commits:
            log, link = self._store.log, (self._links or {}).get(round)
            self._commits[round] = log.parsed(round, link) if link else log.read(round)
        return self._commits[round]
