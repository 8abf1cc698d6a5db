"""`roundweave verify`: whether a run is as it was written."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from flows.command.errors import FAILED, clear_errors, print_json
from flows.command.options import Json, Root
from flows.command.printing.console import console
from storage.runs.names import find_run, run_name
from storage.upkeep.verifying.verify import Verification, verify


def verify_command(
    run: Annotated[str, typer.Argument(help="the run's name, or its path")],
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
            _print(run_name(address), verification)
    if not verification.sound:
        sys.exit(FAILED)


def _print(name: str, verification: Verification) -> None:
    """A line for each finding and note, then what was read."""
    out = console()
    for finding in verification.findings:
        out.print(str(finding), style="red", soft_wrap=True)
    for note in verification.notes:
        out.print(f"note: {note}", style="yellow", soft_wrap=True)
    found = len(verification.findings)
    read = f"{verification.rounds} rounds, {verification.files:,} files, {verification.bytes:,} bytes"
    out.print(
        f"{name}: {'sound' if verification.sound else f'{found} found'}; {read}", style="bold", soft_wrap=True
    )
    if verification.chain:
        out.print(f"chain {verification.chain}", soft_wrap=True)
    if verification.vouched is not None:
        out.print(f"the expected chain vouches for rounds 0 to {verification.vouched}")
