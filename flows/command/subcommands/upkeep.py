"""`roundweave verify`, `prune`, `cp` and `rm`: is a run sound, what is kept of it, copies, its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from flows.command.arguments import Json, Root, RunName
from flows.command.errors import FAILED, clear_errors, print_json
from flows.command.printing.console import console
from storage.errors import UsageError, listed
from storage.places.addresses import last_name, scheme_of
from storage.places.schemes import place_of
from storage.rounds.store import RoundStore
from storage.runs.names import SUFFIX, find_run, run_address, run_name
from storage.runs.run import Run, open_run
from storage.upkeep.copying import copy_run
from storage.upkeep.keeping import Keep
from storage.upkeep.pruning import prune_run
from storage.upkeep.removing import remove_run
from storage.upkeep.verifying.verify import Verification, verify


def verify_command(
    run: RunName,
    expect: Annotated[
        str | None, typer.Option(help="a chain that was noted down, of the last record or of an earlier one")
    ] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Read all of a run and name every file that is not as it was written; exit code 1 where there is one."""
    with clear_errors(as_json):
        address = find_run(run, root)
        verification = verify(address, expect)
        if as_json:
            print_json({"run": run_name(address), "sound": verification.sound, **asdict(verification)})
        else:
            _print_verification(run_name(address), verification)
    if not verification.sound:
        sys.exit(FAILED)


def _print_verification(name: str, verification: Verification) -> None:
    """A line for each finding and note, then what was read."""
    out = console()
    for finding in verification.findings:
        out.print(str(finding), style="red", soft_wrap=True)
    for note in verification.notes:
        out.print(f"note: {note}", style="yellow", soft_wrap=True)
    out.print(f"{name}: {verification.told}", style="bold", soft_wrap=True)
    if verification.chain:
        out.print(f"chain {verification.chain}", soft_wrap=True)
    if verification.vouched is not None:
        out.print(f"the expected chain vouches for rounds 0 to {verification.vouched}")


def prune_command(
    run: RunName,
    keep: Annotated[str, typer.Option(help="what stays: states, every:k, last:n")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, and let nothing go")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Let go of the tensors of rounds; their records and numbers stay, and what going on needs."""
    with clear_errors(as_json, "interrupted; prune again to end it"):
        stored = open_run(run, root)
        goes = prune_run(_store(stored), Keep.of(keep), dry_run)
        went = "would go" if dry_run else "went"
        gone = f"of rounds {listed(goes.rounds)} {went} {goes.bytes / 1e6:.3g} MB"
        said = gone if goes.rounds else f"with --keep {keep} nothing is to be pruned"
        numbers = {"rounds": list(goes.rounds), "bytes": goes.bytes, "dry_run": dry_run}
        _say(stored, said, as_json, **numbers)


def cp_command(
    run: RunName,
    target: Annotated[str, typer.Argument(help="a root to copy it under, or the place of the copy, as NAME.zarr")],
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Copy a run, and verify it while it is copied; the copy is there at once, or not at all."""
    with clear_errors(as_json, "interrupted; there is no copy"):
        stored = open_run(run, root)
        where = target if last_name(target).endswith(SUFFIX) else run_address(target, stored.name)
        with _bar("copying") as step:
            chain = copy_run(_store(stored), place_of(where), step)
        _say(stored, f"copied and verified, chain {chain[:16]}; the copy is", as_json, copy=where, chain=chain)
        if not as_json:  # a line of its own, for a script to take
            console().print(where, soft_wrap=True)


def rm_command(
    run: RunName,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Delete a run with all its rounds."""
    with clear_errors(as_json, "interrupted"):
        stored = open_run(run, root)
        if not scheme_of(stored.address) and Path(stored.address).is_symlink():
            raise UsageError(f"{stored.address} is a link to a run; delete the link, or give the path of the run")
        if not yes and not _agreed(stored):
            raise typer.Abort
        remove_run(place_of(stored.address))
        _say(stored, f"deleted from {stored.address}", as_json)


def _store(stored: Run) -> RoundStore:
    return RoundStore(stored.address, bool(stored.config.get("fsync")))


def _agreed(stored: Run) -> bool:
    """Whether somebody at a terminal agrees to delete it; raises `UsageError` where nobody is."""
    if not sys.stdin.isatty():
        raise UsageError(f"{stored.name} has {stored.done} rounds; give --yes to delete it")
    return typer.confirm(f"delete {stored!r}?", err=True)


def _say(stored: Run, said: str, as_json: bool, **values: object) -> None:
    if as_json:
        print_json({"run": stored.name, "path": str(stored.address), **values})
    else:
        console().print(f"{stored.name}: {said}", soft_wrap=True)


@contextmanager
def _bar(doing: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal while something is done; gives what is to be told how much of how much is."""
    shown = Console(stderr=True)
    with Progress(console=shown, transient=True, disable=not shown.is_terminal) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
