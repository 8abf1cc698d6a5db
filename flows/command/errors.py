"""How the command fails: one line for a person, the exit code, and where asked a JSON object."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from flows.command.common import console, print_json
from storage.errors import CodeError, RoundweaveError, UsageError, reason

FAILED, BAD_USAGE = 1, 2
"""Exit codes."""


@contextmanager
def clear_errors(as_json: bool = False) -> Iterator[None]:
    """End the command with one line and an exit code where an error would be a traceback."""
    try:
        yield
    except typer.TyperException as error:
        fail(error.format_message().replace("Value error, ", ""), BAD_USAGE, as_json)
    except typer.Abort:
        fail("aborted", FAILED, as_json)
    except (UsageError, CodeError) as error:
        fail(str(error), BAD_USAGE, as_json)
    except RoundweaveError as error:
        fail(str(error), FAILED, as_json)
    except MemoryError:
        fail("there is not enough memory for this; what is committed is kept", FAILED, as_json)
    except BrokenPipeError:
        _nobody_reads()
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{reason(error)}", FAILED, as_json)


def fail(message: str, code: int = FAILED, as_json: bool = False) -> NoReturn:
    """Print the line and end the command."""
    console(stderr=True).print(f"error: {message}", style="red", soft_wrap=True)
    if as_json:
        print_json({"status": "failed", "error": message})
    sys.exit(code)


def _nobody_reads() -> NoReturn:
    """End the command without a word where the program that read its output has ended, such as ``head``."""
    standard_output = select.poll()
    standard_output.register(1, 0)
    if not standard_output.poll(0):
        fail("a connection was closed by its other end")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(FAILED)
