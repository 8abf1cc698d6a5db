"""The base of configurations: what is wrong with one is said in one line, in words for a person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from flows.config.algorithms import EVERY_OPTION
from storage.errors import UsageError, nearest

NAMES = "only letters, digits, '.', '_' and '-', the first a letter, digit or '_'"


class Config(BaseModel):
    """A configuration; raises `UsageError` for what cannot be, which names the nearest of an unknown field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            fields = [*type(self).model_fields, *sorted(EVERY_OPTION)]
            raise UsageError("; ".join(problems(error, fields))) from None


def problems(error: ValidationError, fields: Iterable[str]) -> list[str]:
    """A line a field; an unknown one names the nearest of these."""
    return list(dict.fromkeys(_problem(detail, fields) for detail in error.errors()))


def _problem(detail: ErrorDetails, fields: Iterable[str]) -> str:
    # Inside the union of algorithms the location begins with `algorithm` and the algorithm's name.
    place = [str(part) for part in detail["loc"]]
    field = place[2 if place[0] == "algorithm" and len(place) > 2 else 0] if place else ""
    if detail["type"] == "extra_forbidden":
        return f"unknown field {field!r}; {nearest(field, fields, '`roundweave train --help` lists them')}"
    message = NAMES if detail["type"] == "string_pattern_mismatch" else detail["msg"]
    message = message.removeprefix("Value error, ")
    # What our own checks say names the field already.
    return message if not field or detail["type"] == "value_error" else f"{field} = {detail['input']!r}: {message}"
