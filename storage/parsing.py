"""JSON and TOML that others wrote: what is nested too deep to be worked with is refused as other nonsense is.

So are, in records and schemas, numbers that no run has.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

DEEPEST = 64
"""So many levels have what Roundweave writes, and more than people do."""


MOST_ROUNDS = 1_000_000
"""Rounds of a run: the numbers of all are written ahead, a chunk for each thousand."""


MOST_PARTITIONS = 1 << 20
"""Partitions of a run: the numbers of a round, 8 MB an array, are written whole."""


LATEST = 9e9
"""Seconds since the epoch that tables of dates can show, till the year 2255."""


Round = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
Partition = Annotated[int, Field(ge=0, lt=MOST_PARTITIONS)]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Time = Annotated[float, Field(ge=0, lt=LATEST)]


EXACTLY = ConfigDict(extra="forbid")
"""Of a form that has no further members."""


Form = TypeVar("Form")


NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})\.json")
"""The name of one of the files that are numbered, in its only spelling."""


def numbered(names: Iterable[str]) -> list[int]:
    """The numbers of the names ``<number>.json``, ascending; names with more, and others, are left out."""
    told = (int(parts[1]) for parts in map(NUMBER.fullmatch, names) if parts)
    return sorted(number for number in told if number <= MOST_ROUNDS)


def validated(form: TypeAdapter[Form], text: str | bytes) -> Form:
    """What a JSON text says, which must be of a form to the letter; raises `ValueError`."""
    try:
        return form.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def from_json(text: str | bytes) -> Any:
    """The value of a JSON text; raises `ValueError`."""
    return _parsed(json.loads, text)


def from_toml(text: str) -> dict[str, Any]:
    """The values of a TOML text; raises `ValueError`."""
    values: dict[str, Any] = _parsed(tomllib.loads, text)
    return values


def _parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        value = parse(text)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from error
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def at_commas(value: Any) -> Any:
    """The parts of a text with commas between them; anything else as it is."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value
