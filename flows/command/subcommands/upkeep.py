"""`roundweave verify`, `prune`, `cp` and `rm`: check, prune, copy and delete stored runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.filesize import decimal

from roundweave.flows.command.errors import FAILED, fail
from roundweave.flows.terminal.common import Json, Root, RunName, console, output, run_names, say
from roundweave.storage.errors import NotARun, PlaceError, StoreError, UsageError, listed
from roundweave.storage.parsing import mistakes_as, span_seconds
from roundweave.storage.places.base import last_name
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.runs.names import (
    SUFFIX,
    default_root,
    find_run,
    held_rounds,
    is_run,
    run_address,
    run_name,
)
from roundweave.storage.runs.removing import Eligible, Removal, remove
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.storage.upkeep.copying import copy_run
from roundweave.storage.upkeep.keep import Keep, policies_spelled
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.upkeep.verifying.verify import Verification, verify

DAMAGED, NO_RUN, UNREADABLE = 3, 4, 5
"""The exit codes of `verify`, besides 1 for other failures and 2 for bad usage."""


def verify_command(
    run: RunName,
    expect: Annotated[
        str | None, typer.Option(help="chain digest noted earlier, to check that no record was replaced")
    ] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Read all files of a run, and report each file that changed since it was written.

    Exit codes: 0 if the run is intact; 3 if it is damaged; 4 if it does not exist; 5 if files cannot be read.
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
    keep: Annotated[str, typer.Option(help=f"tensors that stay: {policies_spelled()}")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be deleted")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Delete tensors of rounds. Records, scores and everything that resuming needs stay."""
    stored = open_stored(run, root)
    goes = prune_run(_store(stored), Keep.of(keep), dry_run, held_rounds(stored.address))
    went = "would delete" if dry_run else "deleted"
    gone = f"{went} {goes.bytes / 1e6:.3g} MB of rounds {listed(goes.rounds)}"
    done = gone if goes.rounds else f"nothing to prune with --keep {keep}"
    _say_done(stored, done, as_json, rounds=list(goes.rounds), bytes=goes.bytes, dry_run=dry_run)


def cp_command(
    run: RunName,
    target: Annotated[str, typer.Argument(help="root for the copy, or address of the copy, such as NAME.zarr")],
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Copy a run to another root or address, and verify the copy."""
    stored = open_stored(run, root)
    where = target if last_name(target).endswith(SUFFIX) else run_address(target, stored.name)
    with console(stderr=True).status("copying"):
        chain = copy_run(_store(stored), place_of(where))
    done = f"copied and verified, chain {chain[:16]}; the copy is"
    _say_done(stored, done, as_json, copy=where, chain=chain)
    if not as_json:  # a line of its own, for a script to take
        say(where)


def rm_command(
    runs: Annotated[
        list[str],
        typer.Argument(help="names, addresses or patterns such as 'nightly-*'", autocompletion=run_names),
    ],
    older_than: Annotated[
        str | None, typer.Option(help="only runs that began longer ago, such as 12h, 14d or 2w")
    ] = None,
    keep_best: Annotated[int, typer.Option(min=0, help="number of best complete runs to exempt")] = 0,
    by: Annotated[str, typer.Option(help="score of the last round that --keep-best compares")] = "loss",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be deleted")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Delete runs with all their rounds, except runs in training and runs that another run needs."""
    named = {find_run(run, root): run for run in runs if not _is_pattern(run, root)}
    patterns = [run for run in runs if run not in named.values()]
    opened = _matched(patterns, root) | {each: _opened(each) for each in named}
    with mistakes_as(lambda error: UsageError(f"--older-than {error}")):
        older = None if older_than is None else span_seconds(older_than)
    removals = Eligible(older, keep_best, by, named).removals(root, opened)
    for removal in removals:
        if removal.stays and removal.address in named and not (older or keep_best):
            raise UsageError(f"{removal.name} stays: {removal.stays}")
    going = [removal for removal in removals if not removal.stays]
    if going and not (yes or dry_run):
        _ask(going)
    done = removals if dry_run else list(remove(removals))
    gone = [each for each in done if not each.stays]
    summary = {"removed": {each.name: each.bytes for each in gone}, "bytes": sum(each.bytes for each in gone)}
    stay = {each.name: each.stays for each in done if each.stays}
    output(as_json, summary | {"stay": stay, "dry_run": dry_run}, _print_removals, done, dry_run)
    if len(gone) < len(going):
        sys.exit(FAILED)


def _matched(patterns: Sequence[str], root: str | None) -> dict[str, StoredRun | StoreError]:
    """The runs under a root that fit patterns, by address; raises `NotARun` for a pattern that none fits."""
    matched: dict[str, StoredRun | StoreError] = {}
    for pattern in patterns:
        found = looked_through(root, pattern).items()
        if not found:
            raise NotARun(f"no run {pattern} under {root or default_root()}; `roundweave runs` lists them")
        matched |= {run_address(root, name): run for name, run in found}
    return matched


def _is_pattern(run: str, root: str | None) -> bool:
    """Whether a text is a pattern of names, and no run's own name or address."""
    return any(mark in run for mark in "*?[") and not is_run(run_address(root, run)) and not is_run(run)


def _opened(address: str) -> StoredRun | StoreError:
    try:
        return StoredRun(address)
    except PlaceError:
        raise
    except StoreError as error:
        return error


def _ask(going: Sequence[Removal]) -> None:
    """Ask once whether these runs are to go; raises `UsageError` where there is nobody to ask."""
    what = f"{going[0].name}, " if len(going) == 1 else f"{len(going)} runs, "
    what += decimal(sum(removal.bytes for removal in going))
    if not sys.stdin.isatty():
        raise UsageError(f"{what} would be deleted; give --yes to delete, or --dry-run to see which")
    for removal in going:
        console(stderr=True).print(f"{removal.name}: {decimal(removal.bytes)}", soft_wrap=True)
    typer.confirm(f"delete {what}?", err=True, abort=True)


def _print_removals(done: Sequence[Removal], dry_run: bool) -> None:
    """Print a line for each run, and for several how many went and how many bytes that were."""
    gone, went = [removal for removal in done if not removal.stays], "would be deleted" if dry_run else "deleted"
    for each in done:
        stays = f"stays: {each.stays}" if each.stays else f"{went}, {decimal(each.bytes)}"
        say(f"{each.name}: {stays}")
    if len(done) > 1:
        say(f"{len(gone)} of {len(done)} runs {went}, {decimal(sum(each.bytes for each in gone))}", style="bold")


def _store(stored: StoredRun) -> RoundStore:
    return RoundStore(stored.address, bool(stored.config.get("fsync")))


def _say_done(stored: StoredRun, done: str, as_json: bool, **values: object) -> None:
    summary = {"run": stored.name, "path": str(stored.address), **values}
    output(as_json, summary, say, f"{stored.name}: {done}")
