"""Sections of a run's record: what plugins wrote of the run when it had a round, each in a file of its own."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, JsonValue

from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import Round, mistakes_as, validated
from roundweave.storage.places.base import Place
from roundweave.storage.values.digests import LARGEST, read_sealed, sealed, unsealed

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
class Ending:
    """Which plugin ended a training that was to have so many rounds, and why."""

    by: str
    why: str
    rounds: Round


FORMS: dict[str, Any] = {JUDGEMENT: Judgement, ENDING: Ending}
"""The forms of the sections that the project itself reads; others hold any JSON."""


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
        return section.content if _has_form(section) else None
    older = read_sealed(_Judged, place, f"commits/judgements/{round}.json") if name == JUDGEMENT else None
    known = older and (older.round, older.chain) == (round, chain)
    return {"accepted": older.accepted, "reasons": older.reasons} if older and known else None


def write_section(place: Place, name: str, round: int, chain: str, content: JsonValue) -> None:
    """Write what is to be known of a round, which survives a power loss.

    Raises `UsageError` for a name that no section can have, and for what could not be read again.
    """
    key, section = key_of(name, round), Section(name, round, chain, content)
    with mistakes_as(
        lambda error: UsageError(f"section {name} cannot be written: {error}; give JSON of a megabyte at most"),
        (TypeError, ValueError),
    ):
        text = sealed(section)
        if len(text) > LARGEST or not _has_form(unsealed(Section, text)):
            raise ValueError(f"{len(text)} bytes" if len(text) > LARGEST else "it has another form")
    place.write(key, text, durable=True)


def _has_form(section: Section) -> bool:
    """Whether the content of a section that the project itself reads has that section's form."""
    form = FORMS.get(section.name)
    with suppress(ValueError):
        return form is None or bool(validated(form, json.dumps(section.content)))
    return False
