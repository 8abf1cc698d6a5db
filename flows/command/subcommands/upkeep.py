"""`roundweave verify`, `prune`, `cp` and `rm`: check, prune, copy and delete stored runs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roundweave.flows.command.common import Json, Root, RunName, console, output, say
from roundweave.flows.command.errors import fail
from roundweave.storage.errors import NotARun, PlaceError, UsageError, listed
from roundweave.storage.places.base import last_name, scheme_of
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.names import SUFFIX, find_run, run_address, run_name
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.storage.upkeep.copying import copy_run
from roundweave.storage.upkeep.keep import Keep, policies_spelled
from roundweave.storage.upkeep.pruning import prune_run, remove_run
from roundweave.storage.upkeep.verifying.verify import Verification, verify

DAMAGED, NO_RUN, UNREADABLE = 3, 4, 5
"""The exit codes of `verify`, besides 1 for other failures and 2 for bad usage."""


def verify_command(
    run: RunName,
    expect: Annotated[
        str | None, typer.Option(help="a chain that was noted down, of the last record or of an earlier one")
    ] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Read all of a run and name every file that is not as it was written.

    Exit code 0: the run is sound; 3: it is damaged; 4: there is no such run; 5: something could not be read.
    """
    try:
        address = find_run(run, root)
        result = verify(address, expect)
    except (NotARun, PlaceError) as error:
        fail(str(error), NO_RUN if isinstance(error, NotARun) else UNREADABLE, as_json)
    name = run_name(address)
    output(as_json, {"run": name, "sound": result.sound, **asdict(result)}, _print_verification, name, result)
    if not result.sound:
        sys.exit(DAMAGED)


def _print_verification(name: str, result: Verification) -> None:
    """Print a line for each finding and note, then how much was read."""
    for finding in result.findings:
        say(str(finding), style="red")
    for note in result.notes:
        say(f"note: {note}", style="yellow")
    say(f"{name}: {result.summary_line}", style="bold")
    if result.chain:
        say(f"chain {result.chain}")
    if result.vouched is not None:
        say(f"the expected chain vouches for rounds 0 to {result.vouched}")


def prune_command(
    run: RunName,
    keep: Annotated[str, typer.Option(help=f"what stays: {policies_spelled()}")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, and let nothing go")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Delete tensors of rounds; their records and numbers stay, and all that resuming needs."""
    stored = open_stored(run, root)
    goes = prune_run(_store(stored), Keep.of(keep), dry_run)
    went = "would go" if dry_run else "went"
    gone = f"of rounds {listed(goes.rounds)} {went} {goes.bytes / 1e6:.3g} MB"
    done = gone if goes.rounds else f"with --keep {keep} nothing is to be pruned"
    _say_done(stored, done, as_json, rounds=list(goes.rounds), bytes=goes.bytes, dry_run=dry_run)


def cp_command(
    run: RunName,
    target: Annotated[str, typer.Argument(help="a root to copy it under, or the place of the copy, as NAME.zarr")],
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Copy a run and verify the copy, which appears whole or not at all."""
    stored = open_stored(run, root)
    where = target if last_name(target).endswith(SUFFIX) else run_address(target, stored.name)
    with console(stderr=True).status("copying"):
        chain = copy_run(_store(stored), place_of(where))
    done = f"copied and verified, chain {chain[:16]}; the copy is"
    _say_done(stored, done, as_json, copy=where, chain=chain)
    if not as_json:  # a line of its own, for a script to take
        say(where)


def rm_command(
    run: RunName,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Delete a run with all its rounds."""
    stored = open_stored(run, root)
    if not scheme_of(stored.address) and Path(stored.address).is_symlink():
        raise UsageError(f"{stored.address} is a link to a run; delete the link, or give the path of the run")
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"{stored.name} has {stored.done} rounds; give --yes to delete it")
    if not yes:
        typer.confirm(f"delete {stored!r}?", err=True, abort=True)
    remove_run(place_of(stored.address))
    _say_done(stored, f"deleted from {stored.address}", as_json)


def _store(stored: StoredRun) -> RoundStore:
    return RoundStore(stored.address, bool(stored.config.get("fsync")))


def _say_done(stored: StoredRun, done: str, as_json: bool, **values: object) -> None:
    summary = {"run": stored.name, "path": str(stored.address), **values}
    output(as_json, summary, say, f"{stored.name}: {done}")
