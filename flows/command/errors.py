"""How the command fails: one line for a person, the exit code, and where asked a JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import typer

from flows.command.interrupts import interruptible
from storage.errors import CodeError, RoundweaveError, UsageError, reason

FAILED, BAD_USAGE = 1, 2
INTERRUPTED = "interrupted; committed rounds are kept, `roundweave resume` goes on"


@contextmanager
def clear_errors(as_json: bool = False, interrupted: str = "interrupted") -> Iterator[None]:
    """One line and the exit code in place of a traceback."""
    try:
        with interruptible(partial(fail, interrupted, FAILED, as_json)):
            yield
    except (UsageError, CodeError) as error:
        fail(str(error), BAD_USAGE, as_json)
    except RoundweaveError as error:
        fail(str(error), FAILED, as_json)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{reason(error)}", FAILED, as_json)


def fail(message: str, code: int, as_json: bool = False) -> NoReturn:
    """Print the line and end the command."""
    typer.secho(f"error: {message}", fg="red", err=True)
    if as_json:
        print_json({"status": "failed", "error": message})
    sys.exit(code)


def print_json(value: Any) -> None:
    """One line of JSON on standard output."""
    typer.echo(json.dumps(value))
