"""Parses JSON and TOML that may come from anybody. Too deep nesting and impossible numbers raise `ValueError`."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

DEEPEST = 64
"""The most levels of nesting. Roundweave and people write fewer."""


MOST_ROUNDS = 1_000_000
"""The most rounds of a run. The coordinate that counts them is written ahead, a chunk for each thousand."""


MOST_PARTITIONS = 1 << 20
"""The most partitions of a run. Numbers of a round, at most 8 MB for each array, are written as a whole."""


LATEST = 9e9
"""The latest time, in seconds since the epoch, that pandas can show as a date: in the year 2255."""


Round = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
Partition = Annotated[int, Field(ge=0, lt=MOST_PARTITIONS)]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Time = Annotated[float, Field(ge=0, lt=LATEST)]


EXACTLY = ConfigDict(extra="forbid")
"""The pydantic configuration of forms that forbid unnamed members."""


Form = TypeVar("Form")


SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])")
"""Matches a span of time, such as ``14d``."""

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
"""The seconds of its units."""


def span_seconds(span: str) -> float:
    """Return the seconds of a span of time such as ``90s``, ``12h`` or ``14d``.

    Raises `ValueError` for another text.
    """
    parts = SPAN.fullmatch(span)
    if parts is None or not float(parts[1]):
        raise ValueError(f"{span!r} is no span of time; give one such as 90s, 10m, 12h, 14d or 2w")
    return float(parts[1]) * UNITS[parts[2]]


NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})\.json")
"""Matches the name of a numbered file, such as ``12.json``, without leading zeros."""


def numbered(names: Iterable[str]) -> list[int]:
    """Return the numbers of all names of the form ``<number>.json``, ascending.

    Other names, and numbers above `MOST_ROUNDS`, are left out.
    """
    numbers = (int(parts[1]) for parts in map(NUMBER.fullmatch, names) if parts)
    return sorted(number for number in numbers if number <= MOST_ROUNDS)


_adapter = functools.cache(TypeAdapter)


def config_field(attributes: Mapping[str, Any], name: str) -> Any:
    """Return a field of a run's recorded configuration, unchecked; None in a store without a configuration.

    >>> config_field({"config": {"order": "seeded"}}, "order"), config_field({"config": 0}, "order")
    ('seeded', None)
    """
    config = attributes.get("config")
    return config.get(name) if isinstance(config, Mapping) else None


@contextmanager
def mistakes_as(
    convert: Callable[[Exception], BaseException],
    kinds: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> Iterator[None]:
    """A context whose errors of these kinds are raised as the error that `convert` gives."""
    try:
        yield
    except kinds as error:
        raise convert(error) from error


def parse(form: type[Form], text: str | bytes) -> Form:
    """Return the object of this class that a JSON text describes exactly.

    Raises `ValueError`, which names the member.
    """
    try:
        value: Form = _adapter(form).validate_json(text, strict=True)  # type: ignore[arg-type] # it is hashable
        return value
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def from_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises `ValueError` if it is not JSON or nested too deep."""
    return _parsed(json.loads, text)


def from_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text. Raises `ValueError` if it is not TOML or nested too deep."""
    values: dict[str, Any] = _parsed(tomllib.loads, text)
    return values


def _parsed(load: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        value = load(text)
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
    """Return the parts of a text, which is a JSON list or has commas; any other value unchanged."""
    if isinstance(value, str) and value.startswith("[{"):
        return from_json(value)
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value
