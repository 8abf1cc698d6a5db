"""The forms of a run's attributes, as far as they are shown without resolving them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from roundweave.storage.errors import NotARun
from roundweave.storage.parsing import Count, Round, Time, mistakes_as, parse

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
    """The name of the algorithm or plugin, or the user's function or class."""

    name: str | CodeRecord


@dataclass(frozen=True)
class StartRecord:
    """The checkpoint or the stored round that a run began with."""

    reference: str


@dataclass(frozen=True)
class ConfigRecord:
    """The fields of the configuration that are shown without resolving them."""

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
    plugins: list[AlgorithmRecord] = field(default_factory=list)


@dataclass(frozen=True)
class DataRecord:
    """The data: the numbers of examples and of held-out ones, their digest, names of classes and partitions.

    `files` has the size and digest of each file that is read where it is used, by its name.
    """

    examples: Count = 0
    held_out: Count = 0
    digest: str = ""
    class_names: list[str] = field(default_factory=list)
    partition_names: list[str] = field(default_factory=list)
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
    awaits: list[str] = field(default_factory=list)
    decided_by: list[str] = field(default_factory=list)


def checked_attributes(attributes: Mapping[str, Any], where: object) -> Attributes:
    """Return the attributes in their checked form. Raises `NotARun`, which names `where`, for damaged ones."""
    without_schema = {name: value for name, value in attributes.items() if name != "schema"}
    with mistakes_as(lambda error: NotARun(f"{where}: its record is not that of a run, it is damaged: {error}")):
        return parse(Attributes, json.dumps(without_schema))
