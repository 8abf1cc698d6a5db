"""How runs and their rounds are called: the root, ``RUN``, ``RUN@12``, and the name that was perhaps meant."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from storage.hierarchy.documents import NAME
from storage.places.addresses import Where, address_of, joined, last_name, scheme_of
from storage.places.schemes import place_of

SUFFIX = ".zarr"
"""How the names of runs' folders end."""


def run_name(where: Where) -> str:
    """What the run at an address is called."""
    return last_name(where).removesuffix(SUFFIX)


def recorded_name(value: Any) -> str:
    """A name as a record has it: what is built in by its own, a function of the user's as ``FILE.py:function``."""
    return f"{Path(value['path']).name}:{value['name']}".lstrip(":") if isinstance(value, dict) else str(value)


STORED_ROUND = re.compile("(.+)@(-?[0-9]{1,9})", re.DOTALL)


HERE = "runs"
"""The root where none is named."""


def default_root() -> str:
    """The address under which all runs lie: ``$ROUNDWEAVE_ROOT``, else ``runs`` here."""
    return address_of(os.environ.get("ROUNDWEAVE_ROOT", HERE))


def local_root(root: Where) -> Path:
    """The folder for what must be on this machine: the root, and where that is elsewhere, ``runs`` here."""
    return Path(HERE if scheme_of(root) else root)


def run_address(root: Where | None, name: Where) -> str:
    """Where the run of this name lies, under the default root where none is given."""
    return joined(root or default_root(), f"{os.fspath(name)}{SUFFIX}")


def is_run(where: Where) -> bool:
    """Whether there is a run at an address, or what was one."""
    return place_of(where).has(NAME)


def stored_names(root: Where) -> list[str]:
    """The names of the folders of runs under a root."""
    return [name for name in place_of(root).names() if name.endswith(SUFFIX)]


def new_name(root: Where | None, *parts: str) -> str:
    """``<part>-…-<date>-<4 hex>``, which no run under the root has."""
    stem = "-".join(re.sub(r"[^\w.]+", "", part)[:60] for part in (*parts, time.strftime("%Y%m%d")))
    while is_run(run_address(root, name := f"{stem}-{secrets.token_hex(2)}")):
        pass
    return name


def stored_round(place: Where) -> tuple[str, int] | None:
    """``RUN@12`` as the run and the round, ``RUN@-1`` being the last; None for what is a file or no such name."""
    parts = STORED_ROUND.fullmatch(str(place))
    return (parts[1], int(parts[2])) if parts and (scheme_of(place) or not Path(place).exists()) else None


def near(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """So many of the names at most that a mistyped one may have meant, the nearest first."""
    return difflib.get_close_matches(name, list(names), most)


def nearest(name: str, names: Iterable[str], otherwise: str, most: int = 1) -> str:
    """The question which was meant, or what to say where none is near."""
    close = near(name, names, most)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
