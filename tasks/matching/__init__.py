"""Merging networks that were trained apart: which hidden units are interchangeable, and how to match them."""

from importlib import import_module
from typing import Any

_HOMES = {
    "UnitGroups": "groups",
    "average": "averaging",
    "check_function": "check",
    "find_units": "units",
    "match": "networks",
}

__all__ = ["UnitGroups", "average", "check_function", "find_units", "match"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"tasks.matching has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"tasks.matching.{_HOMES[name]}"), name)
