"""What is recorded of a stored run: its attributes, its rounds, and how it stands. No tensor is read for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field

from roundweave.storage.errors import NotARun
from roundweave.storage.parsing import Count, Round, Time, mistakes_as, validated
from roundweave.storage.places.base import Place, Where
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.columns import ColumnsRecord, read_columns
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.lease import read_lease
from roundweave.storage.rounds.log import Link
from roundweave.storage.rounds.numbers import History
from roundweave.storage.rounds.pruned import Pruned, with_unwritten
from roundweave.storage.rounds.sections import ENDING, JUDGEMENT, Judgement, read_section, write_section
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs import recomputer
from roundweave.storage.runs.names import recorded_name, run_name, stored_round

Table = Annotated[dict[str, Any], Field(max_length=1000)]


@dataclass(frozen=True)
class CodeRecord:
    """A function of the user's: its reference, its name, and the source text from its file at `path`."""

    reference: str
    name: str
    source: str
    path: str = ""


@dataclass(frozen=True)
class AlgorithmRecord:
    """The name of the algorithm, or the user's function."""

    name: str | CodeRecord


@dataclass(frozen=True)
class StartRecord:
    """The checkpoint or the stored round that a run began with."""

    reference: str


@dataclass(frozen=True)
class ConfigRecord:
    """The fields of the configuration that are shown without being resolved."""

    algorithm: AlgorithmRecord
    data: str | CodeRecord | list[str | CodeRecord] | None = None
    model: str | CodeRecord | None = None
    model_options: Table | None = None
    planned: Table | None = None
    start_from: StartRecord | None = None
    resplit_every: int | None = None
    fsync: bool | None = None
    split: str | None = None
    best: str | None = None


@dataclass(frozen=True)
class DataRecord:
    """The data: how many examples, how many of them held out, their digest, and the names of classes.

    `files` has the size and digest of each file that is read where it is used, by its name.
    """

    examples: Count = 0
    held_out: Count = 0
    digest: str = ""
    class_names: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkRecord:
    """The shapes of inputs and the size of outputs, which together with the configuration decide the network."""

    inputs: list[Any]
    outputs: Any


@dataclass(frozen=True)
class ParentRecord:
    """The round of another run that this run began from, and the fields that were changed."""

    run: str
    round: Round
    chain: str
    changed: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Attributes:
    """All attributes of a run, except for its schema."""

    config: ConfigRecord
    created: Time
    algorithm: str = ""
    data: DataRecord = field(default_factory=DataRecord)
    network: NetworkRecord | None = None
    fingerprint: dict[str, str] | None = None
    fingerprints: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    parent: ParentRecord | None = None


def checked_attributes(attributes: Mapping[str, Any], where: object) -> Attributes:
    """The attributes in their checked form; raises `NotARun`, which names `where`, for damaged ones."""
    without_schema = {name: value for name, value in attributes.items() if name != "schema"}
    with mistakes_as(lambda error: NotARun(f"{where}: its record is not that of a run, it is damaged: {error}")):
        return validated(Attributes, json.dumps(without_schema))


class RunFacts:
    """The facts of a stored run as it was when it was opened or last refreshed.

    What of its rounds is not stored is computed again as `placed` says; see `roundweave.flows.evidence`.
    """

    placed: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, where: Where | Place) -> None:
        self._place = place_of(where)
        self.refresh()

    def refresh(self) -> Self:
        """Read the store again, to see the rounds that were committed since the run was opened.

        Returns:
            This run itself.

        Raises:
            NotARun: The run is gone, or its attributes are damaged.
            StoreDamaged: No commit record belongs to the run's attributes.

        Example:
            >>> run.refresh().done
        """
        self._store = RoundStore(self._place)
        if recomputer.recompute is not None:
            self._store.recompute = partial(recomputer.recompute, self)
        checked = checked_attributes(self._store.attributes, self._store.place)
        self._created = checked.created
        self._attributes = {"algorithm": "", "data": asdict(checked.data), "versions": {}} | self._store.attributes
        self._attributes["data"] = asdict(checked.data) | self._attributes["data"]
        self._rounds, self._done = self._store.records, self._store.newest
        self._lease = read_lease(self._place)
        self._planned = (self._lease and self._lease.rounds) or self._store.rounds
        self._commits: dict[int, Commit] = {}
        self._links: dict[int, Link] | None = None
        self._numbers: History | None = None
        return self

    @property
    def address(self) -> str:
        """Where the run lies, as text: a path, or an address such as ``s3://bucket/runs/first.zarr``."""
        return self._store.address

    @property
    def path(self) -> Path:
        """The folder of the run. Raises `UsageError` where the run is not on a disk of this machine."""
        return self._store.path

    @property
    def name(self) -> str:
        """The name of the run under its root, without ``.zarr``."""
        return run_name(self.address)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was started with, as JSON values by field of `TrainConfig`."""
        return dict(self._attributes["config"])

    @property
    def algorithm(self) -> str:
        """The name of the algorithm: built in, your own as ``FILE.py:function``, or ``merge`` for a merge."""
        return recorded_name(self.config["algorithm"]["name"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything that was recorded at the start of the run, by name.

        Among these are ``config``, ``algorithm``, ``data`` (number, digest and classes of the examples),
        ``network``, ``fingerprint`` of the numerics and ``versions`` of installed packages.
        """
        return self._attributes

    @property
    def parent(self) -> str | None:
        """The stored round ``RUN@12``, or checkpoint, that the run began with; None where weights were drawn."""
        if parent := self._attributes.get("parent"):
            return f"{parent['run']}@{parent['round']}"
        start = self.config.get("start_from")
        if start is None or (stored := stored_round(start["reference"])) is None:
            return start and str(start["reference"])
        return f"{run_name(stored[0])}@{stored[1]}"

    @property
    def created(self) -> float:
        """When the run was created, in seconds since the epoch."""
        return self._created

    @property
    def rounds(self) -> int:
        """How many rounds the run is meant to have, according to the process that wrote it last."""
        return max(self._planned, self._done or 0)

    @property
    def partitions(self) -> int:
        """How many partitions the examples are split into."""
        return self._store.schema.partitions

    @property
    def done(self) -> int:
        """The newest round whose commit record is whole; 0 is the initial state."""
        if self._done is None:
            raise NotARun(f"{self.address} has no committed round; start the run again")
        return self._done

    @property
    def committed(self) -> list[int]:
        """The rounds up to `done` whose commit records are whole, ascending. All records are read and verified."""
        return list(self._whole())

    @property
    def pruned(self) -> Pruned:
        """The rounds whose states or updates were pruned, read from the store now.

        Raises `StoreDamaged` where the record of what was pruned is damaged.
        """
        return self._store.tensors.pruned()

    @property
    def absent(self) -> Pruned:
        """The rounds without a state or updates: those that were pruned, and what was never stored."""
        links = self._whole()
        pruned = with_unwritten(self._store.log, self.pruned, links)
        return replace(pruned, states=pruned.states | {round for round, link in links.items() if not link.stored})

    @property
    def kept(self) -> list[int]:
        """The committed rounds whose states can be read, ascending."""
        return list(filter(self.absent.has_state, self.committed))

    @property
    def lost(self) -> list[int]:
        """The rounds without a whole commit record, ascending. Resuming trains those after `done` again."""
        before = set(range(self.done)) - set(self.committed)
        return sorted(before | {round for round in self._rounds if round > self.done})

    @property
    def digest(self) -> str:
        """The BLAKE3 digest of the state after the newest committed round, as 64 hexadecimal digits."""
        return self._commit(self.done).state

    @property
    def chain(self) -> str:
        """The chain of the newest commit record: 64 hexadecimal digits that cover the whole history of the run."""
        return self._store.log.chain(self.done)

    @property
    def stop(self) -> str | None:
        """Why training stopped before the last planned round; None where it did not."""
        ended = self.section(ENDING)
        return self._commit(self.done).stop or (f"{ended['by']}: {ended['why']}" if ended else None)

    @property
    def failure(self) -> str | None:
        """The error that ended the last process that wrote the run; None where it did not fail."""
        return self._lease.failure if self._lease else None

    @property
    def judgement(self) -> Judgement | None:
        """What was judged of the newest round: whether it is ``accepted``, and the ``reasons``."""
        judged = self.section(JUDGEMENT)
        return Judgement(**judged) if judged else None

    def section(self, name: str) -> Any:
        """What a plugin wrote of the newest round in the section of this name, JSON; None where nothing was."""
        return read_section(self._place, name, self.done, self.chain) if self._store.has_sections else None

    def write_section(self, name: str, content: Any) -> None:
        """Write JSON of the newest round as a section of the run's record, where `section` reads it.

        Each round has its own. The section is a file of its own that `verify`, `cp` and `rm` treat as the rest.
        Raises `UsageError` for a name that no section can have, and for what is no JSON of a megabyte at most.
        """
        write_section(self._place, name, self.done, self.chain, content)
        self._store.has_sections = True

    @property
    def columns(self) -> ColumnsRecord | None:
        """What is recorded of the columns of the examples, read now; None where a run recorded nothing of them."""
        return read_columns(self._place, self._attributes)

    @property
    def damaged(self) -> list[int]:
        """The rounds whose damaged records were quarantined when the run was resumed."""
        return [round for round in self._store.quarantined if round in self._rounds or round > self.done]

    @property
    def status(self) -> str:
        """``complete``, ``rejected``, ``running``, ``failed`` or ``interrupted``, as the store alone tells it.

        A run counts as running for up to 30 seconds after a writer on another machine was killed. One that awaits
        sections is complete when they are written. One that was rejected before its first round stays so.
        """
        if self._lease and self._lease.fresh:
            return "running"
        if not self.done and (judgement := self.judgement) and not judgement.accepted:
            return "rejected"
        if self.done >= self.rounds or self.stop:
            if judgement := self.judgement:
                return "complete" if judgement.accepted else "rejected"
            if all(self.section(name) for name in self._attributes.get("awaits", ())):
                return "complete"
        return "failed" if self.failure else "interrupted"

    @property
    def scores(self) -> list[str]:
        """The names of the scores besides the loss, such as ``accuracy``."""
        return self._history.names("scores")

    @property
    def _history(self) -> History:
        """The numbers of all rounds up to `done`, read once."""
        if self._numbers is None:
            done = self.done
            rounds = [round for round in self._rounds if round <= done]
            self._numbers = History(self._store.log, rounds)
        return self._numbers

    @property
    def tensors(self) -> list[str]:
        """The paths of all tensors of the state, such as ``params/fc1.weight``, as ``run[path]`` takes them.

        ``run[name]`` also takes the name of a parameter or buffer without its group, such as ``fc1.weight``.
        """
        return list(self._store.schema.state(1))

    def _whole(self) -> dict[int, Link]:
        """The verified commit records up to `done`, ascending by round; they are read once."""
        if self._links is None:
            done = self.done
            self._links = self._store.log.links([round for round in self._rounds if round <= done])
        return self._links

    def _commit(self, round: int) -> Commit:
        """The commit record of a round, which is read once. Raises `RoundMissing` and `StoreDamaged`."""
        if round not in self._rounds:
            raise self._store.log.missing(round, self._rounds)
        if round not in self._commits:
            log, link = self._store.log, (self._links or {}).get(round)
            self._commits[round] = log.parsed(round, link) if link else log.read(round)
        return self._commits[round]
