"""Contents as objects of a bucket, through obstore. Proved for S3; see ``docs/objects.md`` for what is promised.

Credentials and endpoint are those of the environment (``AWS_…``) of each process: a place knows its address only.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import MemoryStore, S3Store

from storage.errors import PlaceTaken, StoreDamaged, UsageError
from storage.places.addresses import ADDRESS, scheme_of
from storage.places.base import PARTIAL, Piece, parts_of
from storage.places.refusals import telling
from storage.places.together import together

MAKING = f"making{PARTIAL}"
"""The content that says that a place is being made; who creates it makes it."""


PATIENCE = timedelta(minutes=3)
"""How long nobody else takes over a making that does not go on."""


AT_ONCE = 16
"""How many contents are written or read at once: each waits for the network, and a state has some ten tensors."""


RETRIES: Any = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2)},
}
"""A server that stumbles is asked again, one that is not there is told of in seconds."""


_memories: dict[str, MemoryStore] = {}


def _client(address: str) -> tuple[S3Store | MemoryStore, str]:
    """The client of an address, one for a bucket in this process, and the key of the address in it."""
    bucket, _, key = ADDRESS.sub("", address, count=1).partition("/")
    if scheme_of(address) == "memory":
        return _memories[bucket], key
    environment = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
    return _bucket(bucket, environment), key


@functools.lru_cache(maxsize=16)
def _bucket(bucket: str, environment: frozenset[tuple[str, str]]) -> S3Store:
    """The client of a bucket, which reads the environment itself."""
    return S3Store(bucket, retry_config=RETRIES)


def s3_place(address: str) -> ObjectPlace:
    """The place of ``s3://bucket/…``; raises `UsageError` for an address without a bucket or with odd parts."""
    bucket, *parts = ADDRESS.sub("", address, count=1).split("/")
    if not bucket or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"{address} is no address of a bucket's part; give s3://BUCKET/NAME")
    return ObjectPlace(address)


@dataclass(frozen=True)
class ObjectPlace:
    """The objects of a bucket whose keys begin with those of the address."""

    address: str
    at_once: ClassVar[int] = AT_ONCE

    def __str__(self) -> str:
        return self.address

    @telling("read")
    def has(self, key: str) -> bool:
        """Whether there is an object."""
        return self._about(key) is not None

    @telling("list")
    def names(self, prefix: str = "") -> list[str]:
        """What comes next in the keys, ascending; a request for each thousand."""
        client, path = self._at(prefix)
        there = obstore.list_with_delimiter(client, path)
        keys = [*there["common_prefixes"], *(each["path"] for each in there["objects"])]
        names = {key.rpartition("/")[2] for key in keys}
        return sorted(name for name in names if not name.endswith(PARTIAL))

    @telling("read")
    def read(self, key: str, most: int | None = None) -> memoryview | None:
        """The bytes of an object, None where there is none; raises `StoreDamaged` for more than so many."""
        try:
            answer = obstore.get(*self._at(key))
        except FileNotFoundError as error:
            _need_bucket(error)
            return None
        if most is not None and answer.meta["size"] > most:
            raise StoreDamaged(f"{self}/{key} has {answer.meta['size']} bytes, where at most {most} belong")
        return memoryview(bytearray(answer.bytes()))

    @telling("read")
    def read_part(self, key: str, first: int, size: int) -> memoryview | None:
        """So many bytes of an object from the first."""
        client, path = self._at(key)
        try:
            answer = obstore.get(client, path, options={"range": (first, first + size)})
            return memoryview(bytearray(answer.bytes()))
        except FileNotFoundError as error:
            _need_bucket(error)
            return None
        except BaseError:
            about = self._about(key)
            if about is None or first < about["size"]:
                raise
            return memoryview(b"")  # a server has no range of what is past the end

    @telling("list")
    def sizes(self) -> dict[str, int]:
        """The bytes of each object, by key; a request for each thousand."""
        client, path = self._at("")
        start = len(path) + 1 if path else 0
        there = [each for page in obstore.list(client, path) for each in page]
        return dict(sorted((each["path"][start:], each["size"]) for each in there))

    @telling("write")
    def write(self, key: str, *pieces: Piece, durable: bool = False) -> None:
        """Create or replace an object, which is durable when the server has taken it."""
        self.stream(key, pieces, durable)

    @telling("write")
    def stream(self, key: str, pieces: Iterable[Piece], durable: bool = False) -> None:
        """The same; a request has all of the pieces."""
        obstore.put(*self._at(key), b"".join(pieces), use_multipart=False)

    @telling("write")
    def create(self, key: str, *pieces: Piece, durable: bool = False) -> bool:
        """Create an object that is not there: the server decides, by ``If-None-Match``."""
        try:
            obstore.put(*self._at(key), b"".join(pieces), use_multipart=False, mode="create")
        except AlreadyExistsError:
            return False
        return True

    @telling("delete")
    def delete(self, prefix: str) -> None:
        """Delete an object, and all under it."""
        client, path = self._at(prefix)
        there = [each["path"] for page in obstore.list(client, path) for each in page]
        with suppress(FileNotFoundError):
            obstore.delete(client, [*there, path])

    @telling("write")
    def sweep(self) -> None:
        """Delete what a killed maker left: an object is never half-written."""
        self.delete(MAKING)

    def sync(self) -> None:
        """Nothing is to be done: what the server has taken is durable."""

    def flush(self) -> None:
        """As for `sync`."""

    @telling("write")
    def make(self) -> None:
        """Raise `PlaceError` where nothing can be written; a bucket has no folders to be made."""
        probe = f"{secrets.token_hex(8)}{PARTIAL}"
        self.write(probe)
        self.delete(probe)

    @contextmanager
    def aside(self) -> Iterator[ObjectPlace]:
        """A place in memory, whose contents come here at the end, what is at its top last.

        There is no rename, so who creates `MAKING` makes the place, and a making that does not go on is taken over
        after `PATIENCE`: what it left is deleted first. Raises `PlaceTaken` also while another makes it.
        """
        name = secrets.token_hex(8)
        _memories[name] = MemoryStore()
        try:
            yield (aside := ObjectPlace(f"memory://{name}"))
            self._take(aside)
        finally:
            del _memories[name]

    @telling("write")
    def _take(self, aside: ObjectPlace) -> None:
        """Make this place of what is aside."""
        *keys, last = sorted(aside.sizes(), key=lambda key: (-key.count("/"), key))
        token = secrets.token_hex(8).encode()
        abandoned = self._claim(token)
        if self.names() if not abandoned else self.has(last):
            self.delete(MAKING)
            raise PlaceTaken(f"{self} exists already")
        for name in self.names():
            self.delete(name)

        def put(key: str) -> None:
            # An object that is there is of a maker that slept and woke up, and is not written over.
            if not self.create(key, aside.read(key) or b""):
                raise PlaceTaken(f"{self} is being made by another process")

        together(self, put, keys)
        if bytes(self.read(MAKING) or b"") != token:
            raise PlaceTaken(f"{self} is being made by another process")
        put(last)
        self.delete(MAKING)

    def _claim(self, token: bytes) -> bool:
        """Begin to make this place, and whether another maker began and did not go on; raises `PlaceTaken`."""
        if self.create(MAKING, token):
            return False
        about = self._about(MAKING)
        taken = PlaceTaken(f"{self} is being made by another process, or one was killed; wait three minutes")
        if about is None or self._now() - about["last_modified"] < PATIENCE:
            raise taken
        try:
            obstore.put(*self._at(MAKING), token, use_multipart=False, mode={"e_tag": about["e_tag"]})
        except PreconditionError:
            raise taken from None
        return True

    def _now(self) -> datetime:
        """The time by the server's clock."""
        probe = f"{secrets.token_hex(8)}{PARTIAL}"
        self.write(probe)
        about = self._about(probe)
        self.delete(probe)
        assert about is not None
        now: datetime = about["last_modified"]
        return now

    def _about(self, key: str) -> Any:
        """What the server says of an object, None where there is none."""
        try:
            return obstore.head(*self._at(key))
        except FileNotFoundError as error:
            _need_bucket(error)
            return None

    def _at(self, key: str) -> tuple[S3Store | MemoryStore, str]:
        client, prefix = _client(self.address)
        return client, "/".join((*([prefix] if prefix else []), *parts_of(key, self)))


def _need_bucket(error: FileNotFoundError) -> None:
    """Raise where it is the bucket, and not an object of it, that is not there."""
    if "NoSuchBucket" in str(error):
        raise error
