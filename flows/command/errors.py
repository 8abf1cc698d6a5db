"""How the command fails: one line for a person, the exit code, and where asked a JSON object."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from flows.command.interrupts import interruptible
from flows.command.printing.console import console
from storage.errors import CodeError, RoundweaveError, UsageError, reason

FAILED, BAD_USAGE = 1, 2
"""Exit codes."""


@contextmanager
def clear_errors(as_json: bool = False, interrupted: str | Callable[[], str] = "interrupted") -> Iterator[None]:
    """One line and the exit code in place of a traceback."""
    try:
        with interruptible(
            lambda: fail(interrupted if isinstance(interrupted, str) else interrupted(), FAILED, as_json)
        ):
            yield
    except (UsageError, CodeError) as error:
        fail(str(error), BAD_USAGE, as_json)
    except RoundweaveError as error:
        fail(str(error), FAILED, as_json)
    except MemoryError:
        fail("there is not enough memory for this; what is committed is kept", FAILED, as_json)
    except BrokenPipeError:
        nobody_reads()
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{reason(error)}", FAILED, as_json)


def fail(message: str, code: int, as_json: bool = False) -> NoReturn:
    """Print the line and end the command."""
    console(stderr=True).print(f"error: {message}", style="red", soft_wrap=True)
    if as_json:
        print_json({"status": "failed", "error": message})
    sys.exit(code)


def nobody_reads() -> NoReturn:
    """End the command without a word where the one that read its output has ended, such as ``head``."""
    output = select.poll()
    output.register(1, 0)
    if not output.poll(0):  # it was another pipe
        fail("a connection was closed by its other end", FAILED)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(FAILED)


def print_json(value: Any) -> None:
    """One line of JSON on standard output."""
    typer.echo(json.dumps(value).replace("\x7f", "\\u007f"))  # the one control character that JSON may have
