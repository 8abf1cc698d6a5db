"""From an address to a place: the scheme before ``:/`` chooses among the kinds of places."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from storage.errors import UsageError
from storage.places.base import Place
from storage.places.local import LocalPlace

SCHEMES: dict[str, Callable[[str], Place]] = {"": lambda address: LocalPlace(Path(address))}
"""What makes a place of an address, by its scheme; a path has none."""


# A path makes one slash of two, so one must do. A single letter is a drive.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def place_of(where: str | os.PathLike[str] | Place) -> Place:
    """The place of an address; raises `UsageError` for a scheme that is not known."""
    if not isinstance(where, str | os.PathLike):
        return where
    address = os.fspath(where)
    found = ADDRESS.match(address)
    scheme = found[1].lower() if found else ""
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES if name)
        raise UsageError(
            f"{address}: there are no places of scheme {scheme}://; give a folder{known and ' or ' + known}"
        )
    return SCHEMES[scheme](address)
