"""From an address to a place: the scheme before ``:/`` chooses among the kinds of places."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from storage.errors import UsageError
from storage.places.addresses import Where, address_of, scheme_of
from storage.places.base import Place
from storage.places.local import LocalPlace


def _s3_place(address: str) -> Place:
    from storage.places.objects import s3_place  # a run on a disk need not wait for the client

    return s3_place(address)


SCHEMES: dict[str, Callable[[str], Place]] = {"": lambda address: LocalPlace(Path(address)), "s3": _s3_place}
"""What makes a place of an address, by its scheme; a path has none."""


def place_of(where: Where | Place) -> Place:
    """The place of an address; raises `UsageError` for a scheme that is not known."""
    if not isinstance(where, str | os.PathLike):
        return where
    address, scheme = address_of(where), scheme_of(where)
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES if name)
        raise UsageError(
            f"{address}: there are no places of scheme {scheme}://; give a folder{known and ' or ' + known}"
        )
    return SCHEMES[scheme](address)
