"""The commit record and its numbers. The record makes a round exist. It is created last and never changed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, JsonValue

from roundweave.storage.errors import UsageError
from roundweave.storage.hierarchy.zarr_format import NAME
from roundweave.storage.parsing import EXACTLY, Count, Partition, Round, Time, mistakes_as, parse
from roundweave.storage.places.base import Place
from roundweave.storage.values.digests import LARGEST_SEALED, read_sealed, sealed, unsealed


@dataclass(frozen=True)
class Arrival:
    """How an update came to a parameter server.

    `push` is the number of the push among those of its partition, from 1. If partitions are drawn, it is the
    number of all pushes before the draw, plus one. The map began from the state of round `version`. `staleness`
    counts the rounds since then that took an update.
    """

    push: Count
    version: Round
    staleness: Round


RAISED = "its map failed with "
"""The beginning of a reason for a refusal if the map raised an exception.

The text after it comes from the exception and may differ in a replay, so it is not compared.
"""


@dataclass(frozen=True)
class UpdateRecord:
    """The record of one partition's update in a commit.

    `digest` covers the vectors of the update. It is empty if they were not stored: the state's digest vouches for
    them. `match` covers the match of units, if any. `refused` is the reason for a refusal, None for an accepted
    update. `seconds` is the time of the map on `worker`. `arrival` is None if rounds wait for all partitions.
    """

    digest: str
    weight: Count
    refused: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    worker: str = ""
    match: str | None = None
    arrival: Arrival | None = None

    @property
    def raised(self) -> bool:
        """Whether there is no update because the map raised an exception."""
        return self.refused is not None and self.refused.startswith(RAISED)

    @property
    def result(self) -> str | None:
        """The part of `refused` that a replay compares: all of it, except for the text of an exception."""
        return RAISED if self.raised else self.refused


@dataclass(frozen=True)
class Score:
    """The mean loss on the held-out examples, and further scores by name, such as ``accuracy``.

    `examples` counts the scored examples. `left_out` counts further examples whose loss or score is no finite
    number; no mean includes them. `loss` is NaN if no example has a finite loss.
    """

    loss: float = math.nan
    values: Mapping[str, float] = field(default_factory=dict)
    examples: Count = 0
    left_out: Count = 0

    @property
    def accuracy(self) -> float | None:
        """The share of examples that were classified correctly; None if the outputs are not classes."""
        return self.values.get("accuracy")

    @property
    def numbers(self) -> dict[str, float]:
        """The loss and all scores by name."""
        return {"loss": self.loss, **self.values}

    def __str__(self) -> str:
        scores = (f"{name} {value:.4f}" for name, value in self.values.items())
        return " · ".join([f"loss {self.loss:.4g}", *scores])

    def row(self) -> dict[str, float]:
        """Return all numbers of the score by name, as a row of a table."""
        left_out = {"left_out": self.left_out} if self.left_out else {}
        return {**self.numbers, "examples": self.examples, **left_out}


LOWEST = ("loss", "mae", "perplexity")
"""The scores whose lowest number is the best. This also holds for derived scores, and for each spread."""


def derived_of(name: str) -> str:
    """Return the score that a number is derived of by its name, such as ``loss`` for ``worst_loss``.

    Empty for none.
    """
    return name.partition("_")[2]


def ranking(best: str) -> tuple[str, bool]:
    """Return the score of ``f1``, ``min:mae`` or ``max:f1``, and whether its lowest number is the best.

    See `LOWEST`.
    """
    way, _, name = best.rpartition(":")
    lowest = not {name, derived_of(name)}.isdisjoint(LOWEST) or name.startswith("spread_")
    return name, way == "min" if way else lowest


@dataclass(frozen=True)
class SplitRecord:
    """The split of a round's examples over partitions: its number, its number of examples, and its digest."""

    number: Round
    examples: Count
    digest: str


@dataclass(frozen=True)
class InFlight:
    """Work of a partition that it has not pushed to the parameter server yet.

    `push` is the number of its push, as in `Arrival`. `version` is the round whose state the partition fetched.
    `steps` is the number of rounds up to that one that took an update.
    """

    push: Count = 1
    version: Round = 0
    steps: Count = 0


@dataclass(frozen=True)
class ServerRecord:
    """The state of a parameter server after a round: the work that is `in_flight`, by partition.

    `steps` counts the rounds so far that took an update. `unsound` are the partitions whose last update was
    refused because of its content.
    """

    in_flight: Mapping[Partition, InFlight]
    steps: Count = 0
    unsound: tuple[Partition, ...] = ()


@dataclass(frozen=True)
class ProcessGroupRecord:
    """The process group of a round: `ranks` processes, of which `sharing` together hold one network.

    `exchanged` has the bytes that ranks sent to each other, by kind: ``activations`` between ranks of one network,
    ``updates`` between ranks that map different partitions, and ``tensors`` on their way to the store. `memory`
    has the peak memory of each rank's process so far, in bytes.
    """

    ranks: Count
    sharing: Count
    exchanged: Mapping[str, Count]
    memory: Annotated[tuple[Count, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Commit:
    """The record of one committed round.

    Args:
        token: The token of the writer's `Lease`, with `epoch`.
        state: The digest of the state, and `tensors` the digests of its tensors by path.
        updates: A record for each partition that was asked and answered in time.
        absent: The partitions that were asked and did not answer in time.
        carry_from: The round that set each partition's carry.
        split: The split of the examples; None if each partition brought examples of its own.
        server: The parameter server; None if the round waited for its partitions.
        score: The score; None if the round was not scored.
        best: The lowest loss so far, among scores that left out as few examples, or the best of another score.
        since_best: The number of scores since the best one.
        stop: Why the run ends after this round; None to go on.
        stored: Whether the state was stored. If not, it can be computed again from the last stored state.
        updates_stored: Whether the updates were stored. If not, only those that set a carry were, and those of
            `late` partitions.
        late: Partitions whose push to a parameter server began before the last stored state.
        seconds: The duration of the round, and `time` its end in seconds since the epoch.
        executor: What ran the round; empty for round 0 and for rounds that a run was given.
        process_group: The ranks that ran the round; None without ranks.
    """

    __pydantic_config__ = EXACTLY

    round: Round
    token: str
    epoch: Count
    state: str
    tensors: Mapping[str, str]
    updates: Mapping[Partition, UpdateRecord] = field(default_factory=dict)
    carry_from: Mapping[Partition, Round] = field(default_factory=dict)
    split: SplitRecord | None = None
    server: ServerRecord | None = None
    score: Score | None = None
    best: float | None = None
    best_left_out: Count = 0
    since_best: Count = 0
    stop: str | None = None
    updates_stored: bool = True
    stored: bool = True
    seconds: float = 0.0
    time: Time = 0.0
    executor: str = ""
    worker: str = ""
    process_group: ProcessGroupRecord | None = None
    absent: tuple[Partition, ...] = ()
    late: tuple[Partition, ...] = ()

    @property
    def accepted(self) -> list[int]:
        """The partitions whose updates were accepted, in the order of the record."""
        return [partition for partition, update in self.updates.items() if update.refused is None]

    def has_update(self, partition: int) -> bool:
        """Tell whether the update of a partition in this round was stored, with its carry and its match."""
        return self.updates_stored or partition in self.late or self.carry_from.get(partition) == self.round

    @property
    def begins(self) -> frozenset[int]:
        """The rounds whose states are needed to go on: this round, and the versions of all work in flight."""
        in_flight = self.server.in_flight.values() if self.server else ()
        return frozenset({self.round, *(work.version for work in in_flight)})

    def identity(self, digested: Collection[int] | None = None) -> tuple[Any, ...]:
        """Return what is equal in two commits of the same work: all that follows from the round's bits.

        Writer, times, workers, metrics, score and storage are left out. Of the digests of updates, only those of
        `digested` partitions are included, if given.
        """
        digests = {p: u.digest for p, u in self.updates.items() if digested is None or p in digested}
        updates = [(p, digests.get(p), u.weight, u.result, u.match, u.arrival) for p, u in self.updates.items()]
        carried = dict(self.carry_from)
        return self.round, self.state, dict(self.tensors), updates, carried, self.split, self.server

    def agrees(self, other: Commit) -> bool:
        """Tell whether two commits have the same identity, as far as the digests of updates are in both."""
        in_both = {p for p, u in self.updates.items() if u.digest and other.updates.get(p, u).digest}
        return self.identity(in_both) == other.identity(in_both)

    def to_json(self) -> str:
        """Return the record as a JSON object."""
        return json.dumps(vars(self), default=vars)

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """Return the record of a JSON text that `to_json` gave. Raises `ValueError` for anything else."""
        return parse(cls, text)


METRIC = re.compile(r"[A-Za-z0-9_@ -][A-Za-z0-9_.@ -]*")


TAKEN = ("round", "partition", "committed", NAME)
"""Names that no metric or score may have, because they mean something else in the zarr hierarchy."""


def metric_problem(name: object) -> str | None:
    """Return why a metric or score cannot have this name, which becomes part of a path; None if it can."""
    if not isinstance(name, str):
        return f"a metric's name is text, not {type(name).__name__}"
    if name in TAKEN:
        return f"{name!r} is taken; give the metric another name"
    if len(name) > 100 or not METRIC.fullmatch(name):
        return f"{name[:120]!r} is no metric's name: 1 to 100 of A-Z a-z 0-9 _ - . @ and space, no leading dot"
    return None


def check_names(commit: Commit) -> None:
    """Raise `UsageError` if a metric or score of a commit cannot be stored under its name."""
    metrics = [name for update in commit.updates.values() for name in update.metrics]
    scores = list(commit.score.values) if commit.score else []
    if "loss" in scores:
        raise UsageError("a score cannot be called 'loss', which is the mean loss; give it another name")
    for name in dict.fromkeys([*metrics, *scores]):
        if problem := metric_problem(name):
            raise UsageError(problem)


def check_columns(columns: Mapping[str, Iterable[float]]) -> None:
    """Raise `ValueError` unless these are numbers of rounds by path, as in `columns_of`."""
    for path, column in columns.items():
        group, _, name = path.partition("/")
        known = name in COLUMNS if group == "bookkeeping" else group in REPORTED and metric_problem(name) is None
        counts = known and name in COLUMNS - {"seconds"} and group != "metrics"
        if not known or (counts and not all(0 <= number < 1 << 53 for number in column if not math.isnan(number))):
            raise ValueError("they are no numbers of rounds")


COLUMNS = {"seconds", "examples", "accepted", "refused", "absent", "left_out"}
"""The columns of each run's history besides scores and metrics."""

REPORTED = ("metrics", "scores")
"""The groups of the numbers that maps and objectives report."""


SECTIONS = ("sections", "judgements")
"""The folders of sections beside the records. The second folder has the judgements of older runs."""

SECTION = re.compile(r"commits/(?:sections/(\w[\w-]*)|judgements)/(\d+)\.json")

JUDGEMENT = "judgement"
"""The section that says whether a run is accepted."""

ENDING = "ending"
"""The section that says which plugin ended a training, and why."""


@dataclass(frozen=True)
class Section:
    """What a plugin wrote about a run at a round. `chain` is the chain of the round's record."""

    name: str
    round: Round
    chain: str
    content: JsonValue


@dataclass(frozen=True)
class Judgement:
    """Whether a run is accepted, a line for each reason, the judged round (None: the last), and the conditions."""

    accepted: bool
    reasons: Annotated[list[str], Field(max_length=1000)]
    round: Round | None = None
    conditions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ending:
    """Which plugin ended a training before its planned rounds, and why."""

    by: str
    why: str
    rounds: Round


FORMS: dict[str, Any] = {JUDGEMENT: Judgement, ENDING: Ending}
"""The forms of the sections that the project itself reads. Others hold any JSON."""


@dataclass(frozen=True)
class _Judged:
    """The judgement of a round in the form of older runs."""

    round: Round
    chain: str
    accepted: bool
    reasons: Annotated[list[str], Field(max_length=1000)]


def section_key(name: str, round: int) -> str:
    """Return the key of a section of a round. Raises `UsageError` for an invalid name of a section."""
    key = f"commits/sections/{name}/{round}.json"
    if not SECTION.fullmatch(key):
        raise UsageError(f"{name!r} is no name of a section; give letters, digits, '_' and '-'")
    return key


def read_section(place: Place, name: str, round: int, chain: str) -> Any:
    """Return the section of a round whose record has this chain; None if it is missing or damaged."""
    section = read_sealed(Section, place, section_key(name, round))
    if section and (section.name, section.round, section.chain) == (name, round, chain):
        return section.content if _has_form(section) else None
    older = read_sealed(_Judged, place, f"commits/judgements/{round}.json") if name == JUDGEMENT else None
    known = older and (older.round, older.chain) == (round, chain)
    return {"accepted": older.accepted, "reasons": older.reasons} if older and known else None


def write_section(place: Place, name: str, round: int, chain: str, content: JsonValue) -> None:
    """Write a section of a round. It survives a power loss.

    Raises `UsageError` for an invalid name of a section, and for a value that could not be read again.
    """
    key, section = section_key(name, round), Section(name, round, chain, content)
    with mistakes_as(
        lambda error: UsageError(f"section {name} cannot be written: {error}; give JSON of a megabyte at most"),
        (TypeError, ValueError),
    ):
        text = sealed(section)
        if len(text) > LARGEST_SEALED or not _has_form(unsealed(Section, text)):
            raise ValueError(f"{len(text)} bytes" if len(text) > LARGEST_SEALED else "it has another form")
    place.write(key, text, durable=True)


def _has_form(section: Section) -> bool:
    """Tell whether the content of a section that the project itself reads has that section's form."""
    form = FORMS.get(section.name)
    with suppress(ValueError):
        return form is None or bool(parse(form, json.dumps(section.content)))
    return False
