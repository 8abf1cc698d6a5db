"""What tables of names share: entries that are loaded when they are used, and one error for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from storage.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """A line of a table: what it is, where it is defined (``module:name``), and what is said after its colon."""

    about: str
    home: str
    argument: str = ""

    def load(self) -> Any:
        """What the entry stands for; its module is imported now."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)


def spelled(table: Mapping[str, Entry]) -> list[str]:
    """How each name of a table is written, such as ``mnist:DIR``."""
    return [f"{name}:{entry.argument}" if entry.argument else name for name, entry in table.items()]


def find(what: str, text: str, table: Mapping[str, Entry], *others: str) -> tuple[Entry, str]:
    """The entry of a ``name`` or ``name:argument``, and the argument; raises `UsageError` for any other."""
    name, _, argument = text.partition(":")
    if name not in table:
        raise unknown(what, text, [*spelled(table), *others])
    entry = table[name]
    if bool(argument) != bool(entry.argument):
        wanted = (
            f"needs its {entry.argument}: {name}:{entry.argument}" if entry.argument else f"takes no {argument!r}"
        )
        raise UsageError(f"{what} {name} {wanted}")
    return entry, argument


def unknown(what: str, value: str, names: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with the nearest and all that do."""
    *most, last = names
    nearest = difflib.get_close_matches(
        value.partition(":")[0], [name.partition(":")[0] for name in [*most, last]], 1
    )
    hint = f"did you mean {nearest[0]}? There" if nearest else "there"
    return UsageError(f"unknown {what} {value!r}; {hint} are {', '.join(most)}, and {last}")
