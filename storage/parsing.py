"""JSON and TOML that others wrote: what is nested too deep to be worked with is refused as other nonsense is."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

DEEPEST = 64
"""So many levels have what Roundweave writes, and more than people do."""


NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})\.json")
"""The name of one of the files that are numbered, in its only spelling."""


def numbered(names: Iterable[str]) -> list[int]:
    """The numbers of the names ``<number>.json``, ascending; other names are left out."""
    return sorted(int(parts[1]) for parts in map(NUMBER.fullmatch, names) if parts)


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
