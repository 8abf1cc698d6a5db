"""What is wrong with a configuration, in words for a person."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flows.config.algorithms import EVERY_OPTION
from flows.config.train import TrainConfig
from storage.runs.names import nearest

NAMES = "only letters, digits, '.', '_' and '-', the first a letter, digit or '_'"


def problems(error: ValidationError) -> list[str]:
    """A line a field; an unknown one names the nearest."""
    return list(dict.fromkeys(map(_problem, error.errors())))


def _problem(detail: ErrorDetails) -> str:
    # Inside the union of algorithms the location begins with `algorithm` and the algorithm's name.
    place = [str(part) for part in detail["loc"]]
    field = place[2 if place[0] == "algorithm" and len(place) > 2 else 0] if place else ""
    if detail["type"] == "extra_forbidden":
        return f"unknown field {field!r}; {_hint(field)}"
    message = NAMES if detail["type"] == "string_pattern_mismatch" else detail["msg"]
    message = message.removeprefix("Value error, ")
    # What our own checks say names the field already.
    return message if not field or detail["type"] == "value_error" else f"{field} = {detail['input']!r}: {message}"


def _hint(field: str) -> str:
    return nearest(
        field, [*TrainConfig.model_fields, *sorted(EVERY_OPTION)], "`roundweave train --help` lists them"
    )
