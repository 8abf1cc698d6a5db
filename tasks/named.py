"""Values that a text stands for: ``name`` or ``name:argument:argument``, by a table of names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from storage.errors import UsageError

T = TypeVar("T")


def make_named(what: str, text: str, table: Mapping[str, Callable[..., T]]) -> T:
    """What the table makes of a text's arguments, each of the type that is annotated; raises `UsageError`."""
    name, *given = text.split(":")
    if name not in table:
        nearest = difflib.get_close_matches(name, table, 1)
        hint = f"did you mean {nearest[0]}? There" if nearest else "there"
        written = ", ".join(_written(known, table[known]) for known in table)
        raise UsageError(f"unknown {what} {name!r}; {hint} are {written}")
    signature = inspect.signature(table[name], eval_str=True)
    try:
        texts = signature.bind(*given).arguments
        arguments = {key: signature.parameters[key].annotation(value) for key, value in texts.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} {text!r} must be written {_written(name, table[name])}") from error
    return table[name](**arguments)


def _written(name: str, make: Callable[..., object]) -> str:
    parameters = inspect.signature(make).parameters.values()
    return name + "".join(f":{p.name}" if p.default is p.empty else f"[:{p.name}]" for p in parameters)
