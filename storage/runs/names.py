"""The names of runs and rounds, such as ``RUN`` and ``RUN@12``, and the root under which runs lie."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

from roundweave.storage.errors import NotARun, UsageError, nearest
from roundweave.storage.places.base import Where, above, address_of, join_address, last_name, scheme_of
from roundweave.storage.places.schemes import place_of
from roundweave.storage.runs.aliases import holder_of

SUFFIX = ".zarr"
"""The suffix of the folders of runs."""


def run_name(where: Where) -> str:
    """The name of the run at an address: its last part without ``.zarr``."""
    return last_name(where).removesuffix(SUFFIX)


def recorded_name(value: Any) -> str:
    """The name of a recorded value: that of a part, or ``FILE.py:function`` for a function of the user's."""
    if not isinstance(value, dict):
        return str(value)
    return f"{Path(str(value.get('path', ''))).name}:{value.get('name')}".lstrip(":")


STORED_ROUND = re.compile("(.+)@(-?[0-9]{1,9}|last|best)", re.DOTALL)

WhichRound = int | Literal["last", "best"]
"""A round by its number, which counts from the end where it is negative, or ``"last"`` or ``"best"``."""


RECORDED = "recorded:"
"""The beginning of an `order` that is the one in which updates arrived in another run."""

HERE = "runs"
"""The root where neither an argument nor ``$ROUNDWEAVE_ROOT`` names one."""


def default_root() -> str:
    """The address under which runs lie by default: ``$ROUNDWEAVE_ROOT``, or else ``runs``."""
    return address_of(os.environ.get("ROUNDWEAVE_ROOT", HERE))


def local_root(root: Where) -> Path:
    """The folder for files that must be on this machine: the root, or ``runs`` where the root is in a bucket."""
    return Path(HERE if scheme_of(root) else root)


def run_address(root: Where | None, name: Where) -> str:
    """The address of the run of this name, under the default root where none is given."""
    return join_address(root or default_root(), f"{os.fspath(name)}{SUFFIX}")


def is_run(where: Where) -> bool:
    """Whether there is a run at an address, whole or damaged."""
    from roundweave.storage.hierarchy.zarr_format import NAME  # slow to import, and for a name alone not needed

    return place_of(where).has(NAME)


def stored_names(root: Where) -> list[str]:
    """The names of all runs' folders under a root, with ``.zarr``."""
    return _folders(place_of(root).names())


def _folders(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(SUFFIX)]


def new_name(root: Where | None, *parts: str) -> str:
    """A new name ``<part>-…-<date>-<4 hexadecimal digits>`` that no run under the root has."""
    stem = "-".join(re.sub(r"[^\w.]+", "", part)[:60] for part in (*parts, time.strftime("%Y%m%d")))
    while is_run(run_address(root, name := f"{stem}-{secrets.token_hex(2)}")):
        pass
    return name


def stored_round(place: Where) -> tuple[str, WhichRound] | None:
    """The run and the round that ``RUN@12``, ``RUN@-1``, ``RUN@last`` or ``RUN@best`` means.

    None for any other text, and for the path of an existing file.
    """
    parts = STORED_ROUND.fullmatch(str(place))
    is_other = parts is None or not (scheme_of(place) or not Path(place).exists())
    return None if parts is None or is_other else (parts[1], which_round(parts[2]))


def named_round(text: str) -> tuple[str, WhichRound]:
    """The run and the round that a text such as ``RUN@12`` means; raises `UsageError` for any other text."""
    if (stored := stored_round(text)) is None:
        raise UsageError(f"{text} is no round; name one, as {text.partition('@')[0]}@last")
    return stored


def which_round(text: str) -> WhichRound:
    """The round that a text such as ``12``, ``-1``, ``last`` or ``best`` means; raises `UsageError` for others."""
    if text in ("last", "best"):
        return cast(Literal["last", "best"], text)
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no round; give its number, -1 for the last, last or best") from error


def find_run(run: Where, root: Where | None = None) -> str:
    """The address of a run by its name or its alias under the root, or by its path or address.

    The run may be damaged. Raises `NotARun`, with a hint, where nothing is found.
    """
    named = run_address(root, run)
    folders = stored_names(above(named))
    if last_name(named) in folders:
        return named
    if held := holder_of(above(named), run_name(named)):
        if f"{held}{SUFFIX}" not in folders:
            raise NotARun(
                f"{run} is an alias of {held}, which is gone; give it to another, `roundweave alias {run} RUN`"
            )
        return run_address(above(named), held)
    for address in (join_address(root or default_root(), run), address_of(run)):
        if contents := place_of(address).names():
            if runs := _folders(contents):
                hint = f"it holds {_names(runs)}; name one, as {join_address(address, runs[0])}"
                raise NotARun(f"{address} is not a run of Roundweave; {hint}")
            return address
    hint = nearest(str(run), map(run_name, folders), f"there are {_names(folders)}")
    if stored := stored_round(run):
        hint = f"that is a round; name its run, {stored[0]}, and the round by --round if the command has it"
    raise NotARun(f"no run {str(run)!r} under {above(named)}; {hint}")


def _names(folders: list[str]) -> str:
    return ", ".join(map(run_name, folders)) or "none"
