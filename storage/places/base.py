"""Addresses, the interface by which the store reads and writes a run anywhere, and concurrent requests."""

from __future__ import annotations

import functools
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import psutil

from roundweave.storage.errors import PlaceError, StoreError, UsageError

Where = str | os.PathLike[str]

# `Path` turns two slashes into one, so one slash is accepted. A single letter would be a Windows drive.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def scheme_of(where: Where) -> str:
    """Return the scheme of an address in lower case; empty for a path.

    >>> scheme_of("s3://bucket/runs"), scheme_of("runs")
    ('s3', '')
    """
    named = ADDRESS.match(os.fspath(where))
    return named[1].lower() if named else ""


def address_of(where: Where) -> str:
    """Return the normal form of an address: a lower-case scheme, two slashes after it, and none at the end.

    >>> address_of("S3:/bucket/runs/"), address_of("runs/")
    ('s3://bucket/runs', 'runs')
    """
    text, scheme = os.fspath(where), scheme_of(where)
    return f"{scheme}://{ADDRESS.sub('', text, count=1).rstrip('/')}" if scheme else str(Path(text))


def join_address(where: Where, name: Where) -> str:
    """Append a name to an address. An absolute path or an address replaces the address, as in joining paths.

    >>> join_address("s3://bucket", "runs"), join_address("s3://bucket", "/runs"), join_address("runs", "s3://b")
    ('s3://bucket/runs', '/runs', 's3://b')
    """
    if scheme_of(name) or not scheme_of(where) or Path(name).is_absolute():
        return address_of(name if scheme_of(name) else Path(where, name))
    return f"{address_of(where)}/{os.fspath(name)}"


def above(where: Where) -> str:
    """Return the address of the folder that an address is in.

    >>> above("s3://bucket/runs/a.zarr"), above("runs/a.zarr")
    ('s3://bucket/runs', 'runs')
    """
    address = address_of(where)
    return address.rpartition("/")[0] if scheme_of(address) else str(Path(address).parent)


def last_name(where: Where) -> str:
    """Return the last part of an address.

    >>> last_name("s3://bucket/runs/a.zarr")
    'a.zarr'
    """
    return address_of(where).rpartition("/")[2] if scheme_of(where) else Path(where).name


def full_address(where: Where) -> str:
    """Return an address that is the same from any working folder: an absolute path, with links resolved."""
    return address_of(where) if scheme_of(where) else str(Path(where).resolve())


LONGEST = 255
"""The most bytes of a name on a disk."""


def as_path(where: Where) -> Path:
    """Return the address as a path.

    Raises `UsageError` if it has a scheme and so is not on a disk of this machine.
    """
    if scheme_of(where):
        raise UsageError(f"{address_of(where)} is not on a disk of this machine; give a path")
    if long := next((part for part in Path(where).parts if len(os.fsencode(part)) > LONGEST), ""):
        raise UsageError(f"{long[:20]}… is a name of {len(long)} characters, and a file system takes {LONGEST}")
    return Path(where)


def file_path(where: Where, what: str, suffixes: Sequence[str], replace: bool = True) -> Path:
    """Return the path of a file to write. Raises `UsageError` for another suffix or a missing folder.

    `what` names the kind of file in messages. Unless it may `replace` a file, none may be there.

    >>> file_path("run.html", "a report", [".html"])
    PosixPath('run.html')
    """
    path = as_path(where)
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: {what} ends in {', '.join(suffixes)}, not in {path.suffix!r}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the file another name")
    if not replace and path.exists():
        raise UsageError(f"{path} exists already; give another name, or --force to replace it")
    return path


PARTIAL = ".partial"
"""The suffix of the names of half-written contents."""


Piece = bytes | memoryview
"""A part of a content. A memoryview must be contiguous, with items of one byte."""


Parameters = ParamSpec("Parameters")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Place(Protocol):
    """Contents (byte strings) by key, on a disk or elsewhere. A key is a relative posix path, as ``params/w/c/0``.

    A content is visible as a whole or not at all, also to other processes, and after its writer was killed. Every
    method raises `StoreError` for a key that leads out of the place or passes a link, and `PlaceError` if the disk
    or the network refuses. The text of a place, ``str(place)``, is its address; `place_of` makes an equal place
    from it.
    """

    @property
    def at_once(self) -> int:
        """The number of requests worth making at once; 1 if threads would not pay."""

    def free(self) -> int | None:
        """Return the bytes that are free on its disk; None if there is no known limit."""

    def has(self, key: str) -> bool:
        """Tell whether there is a content under this key."""

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of contents and folders directly under ``prefix/``, ascending; none if it is empty."""

    def read(self, key: str, most: int | None = None) -> memoryview | None:
        """Return the content under a key, in writable memory of its own; None if there is none.

        Raises `StoreDamaged` for more than `most` bytes, before memory is allocated.
        """

    def read_part(self, key: str, first: int, size: int) -> memoryview | None:
        """Return up to `size` bytes of a content from offset `first`; None if there is no content."""

    def sizes(self) -> dict[str, int]:
        """Return the number of bytes of each content by key, ascending, half-written ones included."""

    def write(self, key: str, *pieces: Piece, durable: bool = False) -> None:
        """Create or replace a content from its pieces. A `durable` content survives a power loss from then on."""

    def stream(self, key: str, pieces: Iterable[Piece], durable: bool = False) -> None:
        """Create or replace a content from pieces that are produced while it is written.

        An error while a piece is produced leaves the content as it was.
        """

    def create(self, key: str, *pieces: Piece, durable: bool = False) -> bool:
        """Create a content that must not exist yet. Return False, with nothing written, if it exists.

        If several processes create the same key at once, exactly one succeeds.
        """

    def delete(self, prefix: str) -> None:
        """Delete the content of this key and all below ``prefix/``. An empty prefix deletes the whole place."""

    def delete_names(self, prefix: str, names: Sequence[str]) -> None:
        """Delete contents of these names directly under ``prefix/``, all at once if possible."""

    def sweep(self) -> None:
        """Delete half-written contents of former writers. Only the process that holds the lease may call this.

        A change that a former writer of a `fenced` place had only prepared does not happen any more.
        """

    def sync(self) -> None:
        """Make all contents of this place survive a power loss, file by file."""

    def flush(self) -> None:
        """Make everything that this machine wrote to the place's file system survive a power loss, in one call."""

    def make(self) -> None:
        """Create the place if it is missing. Raises `PlaceError` if nothing can be written in it."""

    def age(self, key: str) -> float | None:
        """Return how many seconds ago a content was written; None if there is none.

        The clock is that of the disk or server, so all processes get the same answer.
        """

    def fenced(self, check: Callable[[], None]) -> Place:
        """Return this place for a writer whose lease may end. `check` then raises an error.

        The place calls `check` before each change. A writer that is suspended between the check and the change
        changes nothing that a later writer wrote.
        """

    def aside(self) -> AbstractContextManager[Place]:
        """Open an empty temporary place. At the end of the context, its contents appear here all at once.

        After an error in the context nothing appears. Raises `PlaceTaken` if something lies here by then.
        """


def unfenced() -> None:
    """The check of a place that is not fenced: its writer may always write."""


def parts_of(key: str, place: object) -> list[str]:
    """Return the parts of a key between slashes. Raises `StoreError` for ``..`` and other invalid parts."""
    parts = key.split("/") if key else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StoreError(f"{key!r} leads out of {place}")
    return parts


SMALL = 1 << 26
"""Files of at most so many bytes are read without checking how much memory is left."""


def refuse_larger_than_memory(size: int, path: Path | str) -> None:
    """Raise `StoreError` for a file larger than the free memory: reading it would kill the process."""
    if size > SMALL and size > (free := psutil.virtual_memory().available):
        raise StoreError(f"{path} would take {size / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are left")


def refusing(
    act: str, refusal_of: Callable[[str, Exception], PlaceError | None]
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a method of a place, to raise the errors of its disk or server as a `PlaceError`.

    `refusal_of` makes that error from what failed, such as ``read runs/a.zarr/zarr.json`` if `act` is ``read``,
    and from the error. It gives None for an error that passes unchanged.
    """

    def decorate(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(method)
        def called(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
            try:
                return method(*arguments, **options)
            except StoreError:
                raise
            except Exception as error:
                where = "/".join(str(part) for part in arguments[:2] if part != "")
                refusal = refusal_of(f"{act} {where}", error)
                if refusal is None:
                    raise
                raise refusal from None

        return called

    return decorate


AHEAD = 2
"""The most calls of `beside` that wait or run at the same time. Each holds its bytes in memory."""

LARGE = 1 << 20
"""From this many bytes on, `beside` uses a thread for any place.

Writing 2 MB to a disk takes 1 to 6 ms, and passing the call to a thread 0.1 ms.
"""


def together(place: Place, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call a function with each item, `place.at_once` calls at a time. The results are in the items' order."""
    every = list(items)
    if place.at_once == 1 or len(every) < 2:
        return [function(item) for item in every]
    with ThreadPoolExecutor(min(place.at_once, len(every))) as pool:
        return list(pool.map(function, every))


@contextmanager
def beside(place: Place, size: int) -> Iterator[Callable[..., Future[Any]]]:
    """Give a function ``call(function, *arguments)``, which may run a call in a thread.

    `size` is the number of bytes that each call writes. Small writes to a disk are made at once, because a thread
    would not pay. ``call`` returns a future. At the end of the context all calls are done, and an error of any
    call is raised.
    """
    if place.at_once == 1 and size < LARGE:
        yield call_now
        return
    waiting: deque[Future[Any]] = deque()

    def call(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if len(waiting) == AHEAD:
            waiting.popleft().result()
        waiting.append(pool.submit(function, *arguments))
        return waiting[-1]

    with ThreadPoolExecutor(AHEAD if place.at_once > 1 else 1) as pool:
        yield call
        for future in waiting:
            future.result()


def call_now(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function, and return a finished future."""
    done: Future[Any] = Future()
    done.set_result(function(*arguments))
    return done
