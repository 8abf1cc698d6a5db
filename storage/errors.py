"""Every error of Roundweave: one clear line that says what, where, and what to do.

Each is also the builtin that a caller would expect, so ``except KeyError`` finds a missing round.
"""

import difflib
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

LONGEST = 10_000
"""Characters of a text that are shown."""


def printable(text: object) -> str:
    """A text as a terminal may show it: in one line, what is no character of one spelled out, and not too long.

    Names, refusals and messages come from stores and code of others, and could move the cursor, forge lines, or
    turn text around.

    >>> printable("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\\\n'
    """
    shown = str(text)
    if len(shown) > LONGEST:
        shown = f"{shown[:LONGEST]}… and {len(shown) - LONGEST:,} characters more"
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


class RoundweaveError(Exception):
    """The root of all errors raised on purpose; its text is one line for a person."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return printable(Exception.__str__(self))


class UsageError(RoundweaveError, ValueError):
    """The caller asked for something that does not exist or does not fit together."""


class CodeError(RoundweaveError, ImportError):
    """The user's own function could not be found, loaded or called."""


class DataError(RoundweaveError, ValueError):
    """The examples are missing, broken, or do not fit the run."""


class FileMissing(DataError, UsageError):
    """There is no file where the data are to be read."""


class ColumnMissing(DataError, UsageError):
    """A column that was asked for is not in the data."""


class ModelError(RoundweaveError, ValueError):
    """The network cannot be built, or its output does not fit the targets."""


class UnitsUnsound(RoundweaveError, RuntimeError):
    """Permuting the units that were found changes the network's function."""


class ShapeMismatch(RoundweaveError, ValueError):
    """Tensors do not have the names, types or shapes of the layout."""


class CheckpointError(RoundweaveError, ValueError):
    """A file of named tensors is missing, broken, holds code, or does not fit the network."""


class RoundFailed(RoundweaveError, RuntimeError):
    """A round could not be finished; the rounds before it are intact."""


class ClusterError(RoundweaveError, ConnectionError):
    """The Dask cluster cannot be reached, has no usable workers, or lost the work."""


class NumericsMismatch(RoundweaveError, RuntimeError):
    """A process would compute other bits than the run's fingerprint promises."""


class StoreError(RoundweaveError):
    """The root of what can be wrong with a stored run."""


class PlaceError(StoreError, OSError):
    """A disk, or another place, cannot be read or written."""


class DiskFull(PlaceError):
    """A disk has no room, or no more of it is allowed."""


class NotARun(StoreError, ValueError):
    """The path holds no run."""


class RoundMissing(StoreError, KeyError):
    """The run has no such committed round."""


class RoundPruned(RoundMissing):
    """What was asked for of a round was let go, as the run was to keep no more."""


class TensorMissing(StoreError, KeyError):
    """The run stores no tensor of that name."""


class StoreDamaged(StoreError, ValueError):
    """Stored bytes are not the bytes that were committed."""


class ExperimentDiffers(StoreError, ValueError):
    """A run of that name exists and belongs to another experiment."""


class PlaceTaken(StoreError, FileExistsError):
    """Something is where a new run was to be."""


class RunBusy(StoreError, RuntimeError):
    """Another process is writing this run."""


class WriterFenced(StoreError, RuntimeError):
    """Another writer has committed the round that this one was about to commit."""


def one_line(error: BaseException) -> str:
    """Somebody else's error as its type and the first line of its text."""
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def reason(error: BaseException) -> str:
    """The same, without the path where it is a file's, as its place has been named."""
    said = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {said}" if said else one_line(error)


def located(error: BaseException) -> str:
    """The same, with the file and line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return one_line(error) + (f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else "")


@contextmanager
def failing_as(told: Callable[[BaseException], RoundweaveError]) -> Iterator[None]:
    """Within runs code of the user's: what it fails with is told as an error of ours, which passes as it is.

    So are `sys.exit()`, and a KeyboardInterrupt where no Ctrl-C can be meant, which would end a worker.
    """
    try:
        yield
    except RoundweaveError:
        raise
    except (Exception, SystemExit) as error:
        raise told(error) from error
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():
            raise
        raise told(error) from error


def listed(numbers: Iterable[int]) -> str:
    """Numbers in order, neighbours as ``4 to 7``.

    >>> listed([9, 4, 5, 6])
    '4 to 6, 9'
    """
    return ", ".join(" to ".join(map(str, sorted({*span}))) for span in spans(numbers))


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers in order, neighbours as the first and the last of them.

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
    """So many of the names at most that a mistyped one may have meant, the nearest first."""
    return difflib.get_close_matches(str(name), list(names), most)


def nearest(name: object, names: Iterable[str], otherwise: str, most: int = 1) -> str:
    """The question which was meant, or what to say where none is near."""
    close = near(name, names, most)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
