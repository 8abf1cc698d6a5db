"""What the attributes of a run tell of how it was started, checked where they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from storage.errors import NotARun
from storage.parsing import Count, Round, Time, validated

Table = Annotated[dict[str, Any], Field(max_length=1000)]


@dataclass(frozen=True)
class CodeRecord:
    """A function of the user's."""

    reference: str
    name: str
    source: str
    path: str = ""


@dataclass(frozen=True)
class AlgorithmRecord:
    """The algorithm by its name."""

    name: str | CodeRecord


@dataclass(frozen=True)
class ConfigRecord:
    """Of the configuration, what is shown without being resolved."""

    algorithm: AlgorithmRecord
    data: str | CodeRecord | list[str | CodeRecord] | None = None
    model: str | CodeRecord | None = None
    model_options: Table | None = None
    planned: Table | None = None
    resplit_every: int | None = None
    fsync: bool | None = None
    split: str | None = None


@dataclass(frozen=True)
class DataRecord:
    """The examples."""

    examples: Count = 0
    held_out: Count = 0
    digest: str = ""
    class_names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NetworkRecord:
    """What decides how the network is built, beside the configuration."""

    inputs: list[Any]
    outputs: Any


@dataclass(frozen=True)
class ParentRecord:
    """The round that the run came from."""

    run: str
    round: Round
    chain: str
    changed: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Attributes:
    """All of it."""

    config: ConfigRecord
    created: Time
    algorithm: str = ""
    data: DataRecord = field(default_factory=DataRecord)
    network: NetworkRecord | None = None
    fingerprint: dict[str, str] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    parent: ParentRecord | None = None


ATTRIBUTES = TypeAdapter(Attributes)


def checked_attributes(attributes: Mapping[str, Any], where: object) -> Attributes:
    """What attributes tell; raises `NotARun` for what no run tells."""
    told = {name: value for name, value in attributes.items() if name != "schema"}
    try:
        return validated(ATTRIBUTES, json.dumps(told))
    except ValueError as error:
        raise NotARun(f"{where}: its record is not that of a run, it is damaged: {error}") from error
