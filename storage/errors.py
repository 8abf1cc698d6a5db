"""All errors of Roundweave. Each message is one line that says what is wrong, where, and what to do.

Each error is also of the builtin type that a caller would expect, so ``except KeyError`` catches a missing round.
"""

import difflib
import os
import threading
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

CODE_RAISES = (Exception, SystemExit, GeneratorExit, CancelledError)
"""What the user's code may raise; the last three would end a process, a generator or a task without a word."""

LONGEST = 10_000
"""The most characters of a text that are shown."""


def printable(text: object) -> str:
    """A text that is safe to show in a terminal: one line, control characters escaped, at most `LONGEST` long.

    Names and messages may come from other people's runs and code. Unescaped, they could move the cursor, forge
    lines, or reverse text.

    >>> printable("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\\\n'
    """
    shown = str(text)
    if len(shown) > LONGEST:
        shown = f"{shown[:LONGEST]}… and {len(shown) - LONGEST:,} characters more"
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


class RoundweaveError(Exception):
    """The base of all errors that Roundweave raises on purpose. Its text is one printable line.

    Example:
        >>> try:
        ...     rw.open_run("nowhere")
        ... except rw.RoundweaveError as error:
        ...     print(error)
    """

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return printable(Exception.__str__(self))


class UsageError(RoundweaveError, ValueError):
    """The caller asked for something that does not exist, or for things that do not fit together.

    Example:
        >>> try:
        ...     rw.TrainConfig(rounds=0)
        ... except rw.UsageError as error:
        ...     print(error)
    """


class CodeError(RoundweaveError, ImportError):
    """The user's own function could not be found, loaded or called."""


class DataError(RoundweaveError, ValueError):
    """The examples are missing, broken, or not those of the run."""


class FileMissing(DataError, UsageError):
    """The file to read the data from does not exist."""


class ColumnMissing(DataError, UsageError):
    """The data lack a column that was asked for."""


class ModelError(RoundweaveError, ValueError):
    """The network cannot be built, or its output does not fit the targets."""


class UnitsUnsound(RoundweaveError, RuntimeError):
    """Permuting the unit groups that were detected changes what the network computes."""


class ShapeMismatch(RoundweaveError, ValueError):
    """Tensors do not have the expected names, dtypes or shapes."""


class CheckpointError(RoundweaveError, ValueError):
    """A checkpoint file is missing or broken, contains code, or does not fit the network."""


class RoundFailed(RoundweaveError, RuntimeError):
    """A round could not be finished. The rounds before it are committed and intact."""


class TookTooLong(RoundweaveError, TimeoutError):
    """A training was not done in the time that it was given. The rounds before are committed and intact."""


class ClusterError(RoundweaveError, ConnectionError):
    """The Dask cluster cannot be reached, has no usable workers, or lost a task."""


class MapAbandoned(RoundweaveError):
    """A map ended, as its round went on without it."""


class PluginFailed(RoundweaveError, RuntimeError):
    """A plugin of a training raised an error."""


class NumericsMismatch(RoundweaveError, RuntimeError):
    """This process would compute other bits than the run's fingerprint of the numerics promises."""


class StoreError(RoundweaveError):
    """The base of all errors about stored runs. `status` is that of a run which it keeps from opening."""

    status = "damaged"


class PlaceError(StoreError, OSError):
    """A disk or an object store cannot be read or written."""


class DiskFull(PlaceError):
    """A disk is full, or a quota is used up."""


class NotARun(StoreError, ValueError):
    """The path holds no run."""


class ForeignPlace(NotARun):
    """The path holds something that Roundweave did not make."""

    status = "no run"


class OtherVersion(NotARun):
    """The store of a run was written by another version of Roundweave. It is not damaged."""

    status = "of another version"


class RoundMissing(StoreError, KeyError):
    """The run has no such committed round."""


class RoundPruned(RoundMissing):
    """The state or updates of a round were pruned or never stored, as `keep` says."""


class TensorMissing(StoreError, KeyError):
    """The run stores no tensor of that name."""


class StoreDamaged(StoreError, ValueError):
    """Stored bytes are not the bytes that were committed."""


class ExperimentDiffers(StoreError, ValueError):
    """A run of this name exists and was started with another configuration; `run` is the name."""

    run: str = ""


class PlaceTaken(StoreError, FileExistsError):
    """Something already lies at the address of a new run."""


class RunBusy(StoreError, RuntimeError):
    """Another process is writing this run."""


class WriterFenced(StoreError, RuntimeError):
    """Another process has already committed, with other bits or a later claim, the round that this one commits."""


def unless_damaged(
    read: Callable[Parameters, Result], *given: Parameters.args, **named: Parameters.kwargs
) -> Result | None:
    """What `read` returns for these arguments; None where it raises `StoreDamaged`."""
    try:
        return read(*given, **named)
    except StoreDamaged:
        return None


def one_line(error: BaseException) -> str:
    """An error's type and the first line of its text, printable."""
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def reason(error: BaseException) -> str:
    """An error's type and text in one line, without the path that an `OSError` names: messages name it already."""
    system_text = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {system_text}" if system_text else one_line(error)


def located(error: BaseException) -> str:
    """An error's type and text in one line, with the file and line where it was raised, or that called us.

    What dataclasses generate has no file: its error is that of the line that called it.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != "<string>"]
    frames = [frame for frame in frames if not frame.filename.startswith(HERE)] or frames
    return one_line(error) + (f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else "")


HERE = __file__.removesuffix("storage/errors.py")
"""The folder of this package, whose lines are not at fault where a line of the user's called them."""

TRACEBACK = "ROUNDWEAVE_TRACEBACK"
"""The environment variable that is set where errors are to be shown with their tracebacks."""


def show_whole(error: BaseException) -> None:
    """Print an error on standard error with its traceback and those of its causes, where that was asked for."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)


@contextmanager
def failing_as(convert: Callable[[BaseException], RoundweaveError]) -> Iterator[None]:
    """A context for running the user's code, whose exceptions are raised as the error that `convert` gives.

    A `RoundweaveError` passes unchanged. All of `CODE_RAISES` is converted, and so is a KeyboardInterrupt outside
    of the main thread, where it cannot come from Ctrl-C.
    """
    try:
        yield
    except RoundweaveError:
        raise
    except CODE_RAISES as error:
        raise convert(error) from error
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():
            raise
        raise convert(error) from error


def listed(numbers: Iterable[int]) -> str:
    """Numbers as text in ascending order, with consecutive ones joined as ``4 to 7``.

    >>> listed([9, 4, 5, 6])
    '4 to 6, 9'
    """
    return ", ".join(" to ".join(map(str, sorted({*span}))) for span in spans(numbers))


def cut(texts: Sequence[str], most: int = 12, where: str = "") -> list[str]:
    """The first of these texts; if there are more than `most`, a last one says how many, and `where` they are.

    >>> cut(["a", "b", "c"], 2)
    ['a', 'b', 'and 1 more']
    """
    return [*texts[:most], *([f"and {len(texts) - most} more{where}"] if len(texts) > most else [])]


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers in ascending order as inclusive spans (first, last) of consecutive ones.

    >>> spans([9, 4, 5, 6])
    [(4, 6), (9, 9)]
    """
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        neighbour = bool(spans) and number == spans[-1][1] + 1
        first = spans.pop()[0] if neighbour else number
        spans.append((first, number))
    return spans


def near(name: object, names: Iterable[str], most: int = 1) -> list[str]:
    """At most `most` of the names that a mistyped `name` may stand for, the most similar first."""
    return difflib.get_close_matches(str(name), list(names), most)


def nearest(name: object, names: Iterable[str], otherwise: str, most: int = 1) -> str:
    """``did you mean X?`` with the `most` names most similar to `name`, or `otherwise` where none is similar."""
    close = near(name, names, most)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
