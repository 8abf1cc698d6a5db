"""All errors of Roundweave. Each message is one line that says what is wrong, where, and what to do.

Each error also inherits the builtin type that a caller expects: ``except KeyError`` catches a missing round.
"""

import difflib
import os
import sysconfig
import threading
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

CODE_RAISES = (Exception, SystemExit, GeneratorExit, CancelledError)
"""What the user's code may raise. The last three would end a process, a generator or a task in silence."""

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


def short(text: object, longest: int) -> str:
    """Return a printable text, shortened inside if it is longer.

    >>> short("the hospital of Saint Mary", 12)
    'the…int Mary'
    """
    shown, head = printable(text), longest // 4
    return shown if len(shown) <= longest else f"{shown[:head]}…{shown[head + 1 - longest :]}"


class RoundweaveError(Exception):
    """The base of all errors that Roundweave raises on purpose. The text is one printable line.

    Example:
        >>> try:
        ...     rw.open_run("nowhere")
        ... except rw.RoundweaveError as error:
        ...     print(error)
    """

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return printable(Exception.__str__(self))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the user's lines that led here, and the text.

        ``%debug`` knows the other lines.
        """
        led = [frame for error in (self, self.__cause__) if error for frame in _own(error)]
        return [*traceback.format_list(led), f"{type(self).__name__}: {self}"]


class UsageError(RoundweaveError, ValueError):
    """The caller asked for something that does not exist, or for values that contradict each other.

    Example:
        >>> try:
        ...     rw.TrainConfig(rounds=0)
        ... except rw.UsageError as error:
        ...     print(error)
    """


class CodeError(RoundweaveError, ImportError):
    """The user's own function could not be found, loaded or called."""


class DataError(RoundweaveError, ValueError):
    """The examples are missing, broken, or not the examples of the run."""


class FileMissing(DataError, UsageError):
    """The file to read the data from does not exist."""


class ColumnMissing(DataError, UsageError):
    """The data lack a column that was asked for."""


class ModelError(RoundweaveError, ValueError):
    """The network cannot be built, or its output does not fit the targets."""


class UnitsUnsound(RoundweaveError, RuntimeError):
    """Permuting the detected unit groups changes what the network computes."""


class ShapeMismatch(RoundweaveError, ValueError):
    """Tensors do not have the expected names, dtypes or shapes."""


class CheckpointError(RoundweaveError, ValueError):
    """A checkpoint file is missing or broken, contains code, or does not fit the network."""


class RoundFailed(RoundweaveError, RuntimeError):
    """A round could not be finished. The rounds before it are committed and intact."""


class Rejected(RoundweaveError, RuntimeError):
    """A run was rejected, and its configuration has ``on_rejected = "fail"``; the run stays."""


class TookTooLong(RoundweaveError, TimeoutError):
    """A training exceeded its time limit. The rounds before are committed and intact."""


class ClusterError(RoundweaveError, ConnectionError):
    """The Dask cluster cannot be reached, has no usable workers, or lost a task."""


class MapAbandoned(RoundweaveError):
    """A map ended because its round went on without it."""


class PluginFailed(RoundweaveError, RuntimeError):
    """A plugin of a training raised an error."""


class NumericsMismatch(RoundweaveError, RuntimeError):
    """This process would compute other bits than the run's fingerprint of the numerics promises."""


class StoreError(RoundweaveError):
    """The base of all errors about stored runs. `status` is the status of a run that cannot be opened."""

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
    """Another process has already committed this round, with other bits or with a later claim."""


def unless_damaged(
    read: Callable[Parameters, Result], *given: Parameters.args, **named: Parameters.kwargs
) -> Result | None:
    """Return what `read` returns for these arguments; None if it raises `StoreDamaged`."""
    try:
        return read(*given, **named)
    except StoreDamaged:
        return None


def one_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text, printable."""
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def reason(error: BaseException) -> str:
    """Return an error's type and text in one line, without the path of an `OSError`, which messages name."""
    system_text = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {system_text}" if system_text else one_line(error)


def located(error: BaseException) -> str:
    """Return an error's type and text in one line, with the user's line that raised or caused the error."""
    frames = _own(error) or traceback.extract_tb(error.__traceback__)
    return one_line(error) + (f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else "")


def _own(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the user's lines behind an error: lines of files and cells, outside of packages and Python."""
    others = (HERE, "<frozen", "<string>", sysconfig.get_path("stdlib"))
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not (f.filename.startswith(others) or "-packages" in f.filename)]


HERE = __file__.removesuffix("storage/errors.py")
"""The folder of this package. Its lines are not at fault if a line of the user's called them."""

TRACEBACK = "ROUNDWEAVE_TRACEBACK"
"""The environment variable that is set to show errors with their tracebacks."""


def show_whole(error: BaseException) -> None:
    """Print an error on standard error with its traceback and those of its causes, if the user asked for that."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)


@contextmanager
def failing_as(convert: Callable[[BaseException], RoundweaveError]) -> Iterator[None]:
    """Run the user's code in this context. Its exceptions are raised as the error that `convert` gives.

    A `RoundweaveError` passes unchanged. All of `CODE_RAISES` is converted. A KeyboardInterrupt outside of the
    main thread is converted, too: it cannot come from Ctrl-C there.
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


def listed(numbers: Iterable[int], names: Sequence[int | str] = range(0)) -> str:
    """Return numbers as text in ascending order, consecutive ones joined as ``4 to 7``; by `names` if given.

    >>> listed([9, 4, 5, 6])
    '4 to 6, 9'
    >>> listed([2, 0], ["berlin", "paris", "rome"])
    'berlin, rome'
    """
    if not isinstance(names, range):
        return ", ".join(cut([str(names[number]) for number in sorted({*numbers})]))
    return ", ".join(" to ".join(map(str, sorted({*span}))) for span in spans(numbers))


def cut(texts: Sequence[str], most: int = 12, where: str = "") -> list[str]:
    """Return the first of these texts. A last one says how many there are if more than `most`, and `where`.

    >>> cut(["a", "b", "c"], 2)
    ['a', 'b', 'and 1 more']
    """
    return [*texts[:most], *([f"and {len(texts) - most} more{where}"] if len(texts) > most else [])]


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers in ascending order as inclusive spans (first, last) of consecutive ones.

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
    """Return at most `most` of the names that a mistyped `name` may stand for, the most similar first."""
    return difflib.get_close_matches(str(name), list(names), most)


def nearest(name: object, names: Iterable[str], otherwise: str, most: int = 1) -> str:
    """``did you mean X?`` with the `most` names most similar to `name`, or `otherwise` where none is similar."""
    close = near(name, names, most)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
