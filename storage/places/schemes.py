"""Make a place from an address. The scheme before ``:/`` decides which kind of place it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import Place, Where, address_of, scheme_of
from roundweave.storage.places.local import LocalPlace


def _s3_place(address: str) -> Place:
    from roundweave.storage.places.objects import s3_place  # slow to import, and runs on a disk do not need it

    return s3_place(address)


SCHEMES: dict[str, Callable[[str], Place]] = {"": lambda address: LocalPlace(Path(address)), "s3": _s3_place}
"""The function that makes a place from an address, by scheme. The empty scheme is that of paths."""


def place_of(where: Where | Place, fsync: bool = False) -> Place:
    """Return the place at an address, or a place itself.

    Where `fsync`, one whose every write survives a power loss.

    Raises `UsageError` for an unknown scheme.
    """
    if isinstance(where, str | os.PathLike):
        address, scheme = address_of(where), scheme_of(where)
        if scheme not in SCHEMES:
            known = " or ".join(["a folder", ", ".join(f"{name}://" for name in SCHEMES if name)])
            raise UsageError(f"{address}: there are no places of scheme {scheme}://; give {known}")
        where = SCHEMES[scheme](address)
    return replace(where, fsync=True) if fsync and isinstance(where, LocalPlace) else where
