"""The names of runs and rounds, such as ``RUN`` and ``RUN@12``, the root of the runs, and their aliases.

An alias, such as ``champion``, is a name that runs take from one another. An alias is a history. Each entry has a
number of its own and is created exclusively: of two processes that give an alias at once, one comes second and
sees the other's entry before its own. Entries are never changed or deleted. Each ends in a digest of its content
and has the digest of the entry before.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from roundweave.storage.errors import NotARun, StoreDamaged, UsageError, nearest
from roundweave.storage.parsing import Round, Time, mistakes_as, numbered
from roundweave.storage.places.base import (
    Place,
    Where,
    above,
    address_of,
    join_address,
    last_name,
    scheme_of,
    together,
)
from roundweave.storage.places.schemes import place_of
from roundweave.storage.values.digests import LARGEST_SEALED, sealed, unsealed
from roundweave.storage.values.hashing import bytes_digest

SUFFIX = ".zarr"
"""The suffix of the folders of runs."""


def run_name(where: Where) -> str:
    """Return the name of the run at an address: its last part without ``.zarr``."""
    return last_name(where).removesuffix(SUFFIX)


def recorded_name(value: Any) -> str:
    """Return the name of a recorded value: that of a part, or ``FILE.py:function`` for the user's function."""
    if not isinstance(value, dict):
        return str(value)
    return f"{Path(str(value.get('path', ''))).name}:{value.get('name')}".lstrip(":")


def recorded_plugins(attributes: Mapping[str, Any]) -> str:
    """Return the names of the recorded plugins: the user's own, and those of packages that decide bits."""
    own = (recorded_name(each["name"]) for each in attributes["config"].get("plugins", ()))
    return ", ".join([*own, *attributes.get("decided_by", ())])


STORED_ROUND = re.compile("(.+)@(-?[0-9]{1,9}|last|best)", re.DOTALL)

WhichRound = int | Literal["last", "best"]
"""A round by its number, which counts from the end if negative, or ``"last"`` or ``"best"``."""


RECORDED = "recorded:"
"""The beginning of an `order` that repeats the order of arrivals in another run."""

HERE = "runs"
"""The root if neither an argument nor ``$ROUNDWEAVE_ROOT`` names one."""


def default_root() -> str:
    """Return the default address of the runs: ``$ROUNDWEAVE_ROOT``, or else ``runs``."""
    return address_of(os.environ.get("ROUNDWEAVE_ROOT", HERE))


def local_root(root: Where) -> Path:
    """Return the folder for files on this machine: the root, or ``runs`` if the root is in a bucket."""
    return Path(HERE if scheme_of(root) else root)


def run_address(root: Where | None, name: Where) -> str:
    """Return the address of the run of this name, under the default root where none is given."""
    return join_address(root or default_root(), f"{os.fspath(name)}{SUFFIX}")


def is_run(where: Where) -> bool:
    """Tell whether there is a run at an address, whole or damaged."""
    from roundweave.storage.hierarchy.zarr_format import NAME  # slow to import, and a name alone does not need it

    return place_of(where).has(NAME)


def stored_names(root: Where) -> list[str]:
    """Return the names of all runs' folders under a root, with ``.zarr``."""
    return _folders(place_of(root).names())


def _folders(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(SUFFIX)]


def new_name(root: Where | None, *parts: str) -> str:
    """Return a new name ``<part>-…-<date>-<4 hexadecimal digits>`` that no run under the root has."""
    stem = "-".join(re.sub(r"[^\w.]+", "", part)[:60] for part in (*parts, time.strftime("%Y%m%d")))
    while is_run(run_address(root, name := f"{stem}-{secrets.token_hex(2)}")):
        pass
    return name


def stored_round(place: Where) -> tuple[str, WhichRound] | None:
    """Return the run and the round of ``RUN@12``, ``RUN@-1``, ``RUN@last`` or ``RUN@best``.

    Returns None for any other text, and for the path of an existing file.
    """
    parts = STORED_ROUND.fullmatch(str(place))
    is_other = parts is None or not (scheme_of(place) or not Path(place).exists())
    return None if parts is None or is_other else (parts[1], which_round(parts[2]))


def named_round(text: str) -> tuple[str, WhichRound]:
    """Return the run and the round of a text such as ``RUN@12``. Raises `UsageError` for any other text."""
    if (stored := stored_round(text)) is None:
        raise UsageError(f"{text} is no round; name one, as {text.partition('@')[0]}@last")
    return stored


def which_round(text: str) -> WhichRound:
    """Return the round of a text such as ``12``, ``-1``, ``last`` or ``best``. Raises `UsageError` for others."""
    if text in ("last", "best"):
        return cast(Literal["last", "best"], text)
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no round; give its number, -1 for the last, last or best") from error


def find_run(run: Where, root: Where | None = None) -> str:
    """Return the address of a run, as `locate` finds it."""
    return locate(run, root)[0]


def locate(run: Where, root: Where | None = None) -> tuple[str, Holding | None]:
    """Return the address of a run by its name or alias under the root, or by its path or address; and the alias.

    The run may be damaged. Raises `NotARun`, with a hint, if nothing is found.
    """
    named = run_address(root, run)
    folders = stored_names(above(named))
    if last_name(named) in folders:
        return named, None
    if (held := holding_of(above(named), run_name(named))) and held.run:
        if f"{held.run}{SUFFIX}" not in folders:
            raise NotARun(
                f"{run} is an alias of {held.run}, which is gone; give it to another, `roundweave alias {run} RUN`"
            )
        return run_address(above(named), held.run), held
    for address in (join_address(root or default_root(), run), address_of(run)):
        if contents := place_of(address).names():
            if runs := _folders(contents):
                hint = f"it holds {_names(runs)}; name one, as {join_address(address, runs[0])}"
                raise NotARun(f"{address} is not a run of Roundweave; {hint}")
            return address, None
    hint = nearest(str(run), map(run_name, folders), f"there are {_names(folders)}")
    if stored := stored_round(run):
        hint = f"that is a round; name its run, {stored[0]}, and the round by --round if the command has it"
    raise NotARun(f"no run {str(run)!r} under {above(named)}; {hint}")


def _names(folders: list[str]) -> str:
    return ", ".join(map(run_name, folders)) or "none"


# Aliases.

FOLDER = ".aliases"
"""The folder of all aliases under a root, each with a folder of its own."""

ALIAS = re.compile(r"\w[\w.\-]{0,249}")


@dataclass(frozen=True)
class _Entry:
    """An entry of an alias in its older form, which does not say who gave the alias."""

    number: Annotated[int, Field(ge=1)]
    run: str | None
    round: Round | None
    chain: str | None
    why: str
    since: Time
    before: str


@dataclass(frozen=True)
class Holding(_Entry):
    """The holder of an alias from a time on, in seconds since the epoch, and why; `run` is None for nobody.

    An alias is a run at a `round`, whose record has this `chain`. `before` is the digest of the former entry, and
    empty in the first. `by` is who gave the alias. `by_hand` says that a person gave it, and not a run at its end.
    A `pinned` alias goes to another run by hand alone.
    """

    by: str = ""
    by_hand: bool = True
    pinned: bool = False


Unless = Callable[[list[Holding]], str | None]
"""Returns why an alias with these entries stays where it is; None if it may be given."""


def unconditionally(entries: list[Holding]) -> None:
    """Lets an alias be given, whatever its entries are."""


def aliases(root: Where) -> list[str]:
    """Return the names of all aliases under a root, ascending, also of those without a holder."""
    return sorted(filter(ALIAS.fullmatch, _place(root).names()))


def alias_history(root: Where, alias: str) -> list[Holding]:
    """Return the entries of an alias, the newest last. Raises `StoreDamaged` for a missing or changed entry."""
    return [entry for entry, _ in _read_history(_place(root), alias)]


def holding_of(root: Where, alias: str) -> Holding | None:
    """Return the newest entry of an alias; None if there is no such alias."""
    place = _place(root)
    number = _newest(place, alias) if ALIAS.fullmatch(alias) else 0
    return _entry(place, alias, number, _content(place, alias, number)) if number else None


def holder_of(root: Where, alias: str) -> str | None:
    """Return the name of the run that has an alias; None if there is no such alias or no holder."""
    holding = holding_of(root, alias)
    return holding.run if holding else None


def held_rounds(address: Where) -> frozenset[int]:
    """Return the rounds of a run that have aliases, or had one before the present holder."""
    place, name = _place(above(address)), run_name(address)
    entries = [entry for alias in aliases(above(address)) for entry in _newest_two(place, alias)]
    return frozenset(entry.round for entry in entries if entry.run == name and entry.round is not None)


def holders(root: Where) -> dict[str, str]:
    """Return the names of the runs that have aliases, by alias."""
    held = ((alias, holder_of(root, alias)) for alias in aliases(root))
    return {alias: run for alias, run in held if run is not None}


def kept_for_aliases(root: Where) -> dict[str, str]:
    """Return why runs are kept, by name: runs with an alias, and runs that had the alias before, to go back to."""
    place, kept = _place(root), dict[str, str]()
    for alias in aliases(root):
        for entry, said in zip(
            _newest_two(place, alias), ("it is", "it was, before the present one,"), strict=False
        ):
            if entry.run:
                kept.setdefault(entry.run, f"{said} {alias}")
    return kept


def give_alias(
    root: Where,
    alias: str,
    run: str | None,
    why: str,
    round: int | None = None,
    chain: str | None = None,
    unless: Unless = unconditionally,
    **how: Any,
) -> str | None:
    """Give an alias to a run, or take it back if `run` is None, and record that in the alias's history.

    `unless` is called with the entries so far, and may give a reason for which the alias stays. The function
    returns that reason, or None if the alias was given. `how` are further fields of the new `Holding`. Raises
    `UsageError` for an invalid name of an alias.
    """
    if not ALIAS.fullmatch(alias):
        raise UsageError(f"{alias!r} is no name of an alias; give letters, digits, '_', '-' and '.'")
    place = _place(root)
    place.make()
    while True:  # again if another process gave the alias meanwhile
        known = _read_history(place, alias)
        if reason := unless([entry for entry, _ in known]):
            return reason
        number, before = len(known) + 1, known[-1][1] if known else ""
        entry = Holding(number, run, round, chain, why, time.time(), before, person(), **how)
        if place.create(_key(alias, number), sealed(entry), durable=True):
            return None


def _place(root: Where) -> Place:
    return place_of(join_address(root, FOLDER))


def _key(alias: str, number: int) -> str:
    return f"{alias}/{number}.json"


def _newest(place: Place, alias: str) -> int:
    return max(numbered(place.names(alias)), default=0)


def _newest_two(place: Place, alias: str) -> list[Holding]:
    """Return the newest entry of an alias, and the newest one before of another round, if there is one."""
    found = list[Holding]()
    for number in range(_newest(place, alias), 0, -1):
        entry = _entry(place, alias, number, _content(place, alias, number))
        if not found or (entry.run, entry.round) != (found[0].run, found[0].round):
            found.append(entry)
        if len(found) == 2:
            break
    return found


def person() -> str:
    """Return whom this process works for: the user and the machine."""
    with suppress(KeyError, OSError):  # a container may have no name for its user
        return f"{getpass.getuser()}@{platform.node()}"
    return platform.node()


def _read_history(place: Place, alias: str) -> list[tuple[Holding, str]]:
    """Return the entries of an alias, the newest last, each with the digest of its content.

    Raises `StoreDamaged`.
    """
    numbers = range(1, _newest(place, alias) + 1)
    contents = together(place, lambda number: _content(place, alias, number), numbers)
    entries = [_entry(place, alias, number, content) for number, content in zip(numbers, contents, strict=True)]
    digests = [bytes_digest(content) for content in contents]
    for entry, before in zip(entries, ["", *digests], strict=False):
        if entry.before != before:
            raise StoreDamaged(f"{place}/{_key(alias, entry.number)} does not follow the one before; restore both")
    return list(zip(entries, digests, strict=True))


def _content(place: Place, alias: str, number: int) -> bytes:
    return bytes(place.read(_key(alias, number), most=LARGEST_SEALED) or b"")


def _entry(place: Place, alias: str, number: int, content: bytes) -> Holding:
    where = f"{place}/{_key(alias, number)}"
    with mistakes_as(lambda error: StoreDamaged(f"{where} is not what was written; restore it ({error})")):
        entry = _parsed(content)
    if entry.number != number:
        raise StoreDamaged(f"{where} is entry {entry.number}; restore it")
    return entry


def _parsed(content: bytes) -> Holding:
    try:
        return unsealed(Holding, content)
    except ValueError:
        return Holding(**vars(unsealed(_Entry, content)), by_hand=False)
