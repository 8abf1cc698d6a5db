"""How runs and their rounds are called: the root, ``RUN``, ``RUN@12``, and the name that was perhaps meant."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, cast

from storage.errors import UsageError

SUFFIX = ".zarr"
"""How the names of runs' folders end."""


def run_name(path: Path) -> str:
    """What the run in this folder is called."""
    return path.name.removesuffix(SUFFIX)


STORED_ROUND = re.compile("(.+)@(-?[0-9]{1,9}|last|best)", re.DOTALL)

WhichRound = int | Literal["last", "best"]
"""A round by its number, from the end where it is negative, or by what it is to its run."""


def default_root() -> Path:
    """The folder of all runs: ``$ROUNDWEAVE_ROOT``, else ``runs`` here."""
    return Path(os.environ.get("ROUNDWEAVE_ROOT", "runs"))


def run_path(root: str | Path | None, name: str | Path) -> Path:
    """Where the run of this name lies, under the default root where none is given."""
    return Path(root or default_root(), f"{name}{SUFFIX}")


def new_name(root: str | Path | None, *parts: str) -> str:
    """``<part>-…-<date>-<4 hex>``, which no run under the root has."""
    stem = "-".join(re.sub(r"[^\w.]+", "", part)[:60] for part in (*parts, time.strftime("%Y%m%d")))
    while run_path(root, name := f"{stem}-{secrets.token_hex(2)}").exists():
        pass
    return name


def stored_round(place: str | Path) -> tuple[str, WhichRound] | None:
    """``RUN@12``, ``RUN@-1``, ``RUN@last``, ``RUN@best`` as run and round; None for a file or another name."""
    parts = STORED_ROUND.fullmatch(str(place))
    return (parts[1], which_round(parts[2])) if parts and not Path(place).exists() else None


def which_round(text: str) -> WhichRound:
    """A round as it is written after the ``@``; raises `UsageError`."""
    if text in ("last", "best"):
        return cast(Literal["last", "best"], text)
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no round; give its number, -1 for the last, last or best") from error


def near(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """So many of the names at most that a mistyped one may have meant, the nearest first."""
    return difflib.get_close_matches(name, list(names), most)


def nearest(name: str, names: Iterable[str], otherwise: str, most: int = 1) -> str:
    """The question which was meant, or what to say where none is near."""
    close = near(name, names, most)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
