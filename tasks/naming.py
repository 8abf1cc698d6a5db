"""What is said of a name that a table does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from storage.errors import UsageError


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, None where none is near."""
    close = difflib.get_close_matches(name, list(names), 1)
    return close[0] if close else None


def unknown(what: str, name: str, names: Iterable[str]) -> UsageError:
    """The error for a name that is in no table and is no function of the user's."""
    names = list(names)
    meant = nearest(name, names)
    hint = f"did you mean {meant}? There" if meant else "there"
    return UsageError(f"unknown {what} {name!r}; {hint} are {', '.join(names)}, and FILE.py:function")
