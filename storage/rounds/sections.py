"""Sections of a run's record: what plugins wrote of the run when it had a round, each in a file of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, JsonValue

from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import Round
from roundweave.storage.places.base import Place
from roundweave.storage.values.digests import read_sealed, sealed

FOLDERS = ("sections", "judgements")
"""The folders of sections beside the records; the second is that of older runs' judgements."""

KEY = re.compile(r"commits/(?:sections/(\w[\w-]*)|judgements)/(\d+)\.json")

JUDGEMENT = "judgement"
"""The section that says whether a run is accepted."""

ENDING = "ending"
"""The section that says which plugin ended a training, and why."""


@dataclass(frozen=True)
class Section:
    """What a plugin wrote of a run that had a round; `chain` is that of the round's record."""

    name: str
    round: Round
    chain: str
    content: JsonValue


@dataclass(frozen=True)
class Judgement:
    """Whether a run is accepted, with a line for each reason."""

    accepted: bool
    reasons: Annotated[list[str], Field(max_length=1000)]


@dataclass(frozen=True)
class _Judged:
    """The judgement of a round as older runs have it."""

    round: Round
    chain: str
    accepted: bool
    reasons: Annotated[list[str], Field(max_length=1000)]


def key_of(name: str, round: int) -> str:
    """The key of a section of a round; raises `UsageError` for a name that no section can have."""
    key = f"commits/sections/{name}/{round}.json"
    if not KEY.fullmatch(key):
        raise UsageError(f"{name!r} is no name of a section; give letters, digits, '_' and '-'")
    return key


def read_section(place: Place, name: str, round: int, chain: str) -> Any:
    """What was written of a round whose record has this chain; None where nothing was, or it is damaged."""
    section = read_sealed(Section, place, key_of(name, round))
    if section and (section.name, section.round, section.chain) == (name, round, chain):
        return section.content
    older = read_sealed(_Judged, place, f"commits/judgements/{round}.json") if name == JUDGEMENT else None
    known = older and (older.round, older.chain) == (round, chain)
    return {"accepted": older.accepted, "reasons": older.reasons} if older and known else None


def write_section(place: Place, name: str, round: int, chain: str, content: JsonValue) -> None:
    """Write what is to be known of a round, which survives a power loss."""
    place.write(key_of(name, round), sealed(Section(name, round, chain, content)), durable=True)
