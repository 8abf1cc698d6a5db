"""How the command fails or is interrupted: a line for a person, an exit code and, with `--json`, a JSON object."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import psutil
import typer

from roundweave.flows.terminal.common import console, print_json
from roundweave.storage.errors import CodeError, RoundweaveError, UsageError, reason, show_whole

FAILED, BAD_USAGE = 1, 2
"""The exit codes of a failure and of bad usage."""


@contextmanager
def clear_errors(as_json: bool = False) -> Iterator[None]:
    """Turn errors into one line and an exit code instead of a traceback, and end the command."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - what is not told is raised again
        show_whole(error)
        fail(*_told(error), as_json)


def _told(error: Exception) -> tuple[str, int]:
    """An error as a line, and its exit code; raises errors that are nobody's fault but ours."""
    text, code = str(error), FAILED
    match error:
        case typer.TyperException():
            from roundweave.flows.config.guesses import guess  # most commands have no unknown word

            text, code = guess(error.format_message().replace("Value error, ", "")), BAD_USAGE
        case typer.Abort():
            text = "aborted"
        case UsageError() | CodeError():
            code = BAD_USAGE
        case RoundweaveError():
            pass
        case ValueError():
            text, code = _wrong_setting(error), BAD_USAGE
        case MemoryError():
            text = "there is not enough memory for this; what is committed is kept"
        case BrokenPipeError():
            text = _nobody_reads()
        case OSError():
            text = f"{error.filename}: " * bool(error.filename) + reason(error)
        case _:
            raise error
    return text, code


def _wrong_setting(error: ValueError) -> str:
    """What is wrong with a setting of Prefect, which is checked when Prefect is imported; raises other errors."""
    from pydantic import ValidationError  # slow to import, and imported already where it is raised

    if not (isinstance(error, ValidationError) and error.title.endswith("Settings")):
        raise error
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    return f"Prefect's {error.title}: {name}: {first['msg']}; mend the variable PREFECT_… or prefect.toml"


def fail(message: str, code: int = FAILED, as_json: bool = False) -> NoReturn:
    """Print one error line, with `as_json` also a JSON object, and exit with this code."""
    console(stderr=True).print(f"error: {message}", style="red", soft_wrap=True)
    if as_json:
        print_json({"status": "failed", "error": message})
    sys.exit(code)


def _nobody_reads() -> str:
    """End the command silently if the program that read its output has ended, such as ``head``.

    If standard output is still open, another connection was closed, which the line says.
    """
    standard_output = select.poll()
    standard_output.register(1, 0)
    if not standard_output.poll(0):
        return "a connection was closed by its other end"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(FAILED)


SECONDS = 8.0
"""The time after which an interrupted command ends by force; committed rounds are safe in any case."""

IMPORT_SECONDS = 0.5
"""The time after which it does so while a module is imported."""

AGAIN_SECONDS = 0.05
"""How often it is looked whether the import has ended."""


@contextmanager
def ended_by_interrupts(say: Callable[[], None]) -> Iterator[None]:
    """At Ctrl-C, raise `KeyboardInterrupt` in the block once, call `say` once, and end the process.

    Whatever error the block ends with after that, nothing but `say` prints. A `KeyboardInterrupt` from elsewhere
    also leads to one call of `say`.
    """
    end = _End(say)
    before = signal.signal(signal.SIGINT, end.interrupt)
    try:
        yield
    except BaseException as error:
        if end.asked or isinstance(error, KeyboardInterrupt):
            end.say_once()
        raise
    finally:
        if end.asked:
            _end()
        signal.signal(signal.SIGINT, before)


class _End:
    """The end of a command at Ctrl-C: whether it was `asked` for, and what is said of it."""

    def __init__(self, say: Callable[[], None]) -> None:
        self.asked, self._said, self._say, self._raised = False, False, say, threading.Event()

    def say_once(self) -> None:
        if not self._said:
            self._said = True
            self._say()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise `KeyboardInterrupt`, and have a thread end what hangs after that; the handler of the signal."""
        if not self.asked:
            self.asked = True
            logging.disable()  # interrupted work would log tracebacks
            # An exception raised inside one of Python's own callbacks is printed as ignored and lost. Then nothing
            # is printed here, and the command ends by force.
            sys.unraisablehook = lambda lost: None
            threading.Thread(target=self._end_what_hangs, daemon=True).start()
        if _imports(frame):  # C++ that meets an exception while it is imported ends the process with its own words
            threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()
            return
        self._raised.set()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # holds to the end, unlike handlers, which Python drops
        raise KeyboardInterrupt

    def _end_what_hangs(self) -> None:
        if self._raised.wait(IMPORT_SECONDS):
            threading.Event().wait(SECONDS)
        with suppress(SystemExit):
            self.say_once()
        _end()


def _imports(frame: FrameType | None) -> bool:
    """Whether this frame, or one that led to it, imports a module."""
    while frame and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _end() -> None:
    """Kill this process and all it has started, as libraries' exit handlers would take time or print."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
