"""Runs in a bucket of an object store, through obstore. Tested with S3; see ``docs/how-to/buckets.md``.

Each process takes credentials and endpoint from its own environment (``AWS_…``), or from the files of a profile. A
place holds its address only, so no credentials are pickled or logged.
"""

from __future__ import annotations

import configparser
import functools
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import MemoryStore, S3Store

from roundweave.storage.errors import PlaceError, PlaceTaken, StoreDamaged, UsageError
from roundweave.storage.places.base import (
    ADDRESS,
    PARTIAL,
    Piece,
    parts_of,
    refusing,
    scheme_of,
    together,
    unfenced,
)

MAKING = f"making{PARTIAL}"
"""The key of an object that marks a place as being made. The process that creates this object makes the place."""

PATIENCE = timedelta(minutes=3)
"""How old the marker of a killed maker must be before another process takes over."""

AT_ONCE = 16
"""How many requests are made at once. Each waits for the network, and a state has about ten tensors or more."""

RETRIES: Any = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2)},
}
"""Failed requests are repeated, but a server that cannot be reached is reported within seconds."""

REASONS = {
    "NoSuchBucket": "there is no such bucket; make it, or give another address",
    "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|Unauthenticated": (
        "the credentials are not accepted; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    "/latest/api/token|/latest/meta-data|169.254.170|[Cc]redential": (
        "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    "AccessDenied|PermissionDenied|403 ": "access is denied; ask for the rights to list, read, write and delete",
    "PermanentRedirect|[Rr]edirect": "the bucket is in another region; set AWS_REGION",
    "BadScheme|scheme is not allowed": "the server has no TLS; set AWS_ALLOW_HTTP=true where that is meant",
    "kind: Timeout|kind: Connect|error sending request|timed out": (
        "the server does not answer; is AWS_ENDPOINT_URL right, and the network up?"
    ),
}
"""What is wrong and what to do, by a pattern in the client's error.

The client's own text is not shown, since it has many lines and may contain internal addresses.
"""


def _refusal(what: str, error: Exception) -> PlaceError | None:
    return PlaceError(f"cannot {what}: {_reason(error)}") if isinstance(error, BaseError | OSError) else None


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__} {error}"
    for pattern, remedy in REASONS.items():
        if re.search(pattern, text):
            return remedy
    status = re.search(r"status code: (\d+[\w ]*)", text)
    return f"the server answers {status[1].strip() if status else type(error).__name__}; try again later"


_reading, _listing, _writing, _deleting = (refusing(act, _refusal) for act in ("read", "list", "write", "delete"))


_memories: dict[str, MemoryStore] = {}


def client_of(address: str) -> tuple[S3Store | MemoryStore, str]:
    """Return the client for an address, one for each bucket in this process, and the key prefix."""
    bucket, _, key = ADDRESS.sub("", address, count=1).partition("/")
    if scheme_of(address) == "memory":
        return _memories[bucket], key
    environment = frozenset((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    return _bucket(bucket, environment), key


@functools.lru_cache(maxsize=16)
def _bucket(bucket: str, environment: frozenset[tuple[str, str]]) -> S3Store:
    """Return the client of a bucket, cached as long as its credentials in the environment stay the same."""
    return S3Store(bucket, retry_config=RETRIES, **of_profile(dict(environment)))


PROFILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
"""The variables that name the files of AWS's profiles, and where these lie otherwise."""

OF_PROFILES = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region", "endpoint_url")
"""What is taken of a profile, which has the first two, or one of `ELSEWHERE` if they are fetched or computed."""

ELSEWHERE = {"role_arn", "sso_session", "sso_start_url", "credential_process"}


def of_profile(environment: dict[str, str]) -> dict[str, Any]:
    """Return what a profile tells a client that no variable ``AWS_…`` of the environment does.

    Raises `PlaceError`.
    """
    if environment.keys() & {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"}:
        return {}
    asked, files = environment.get("AWS_PROFILE"), configparser.RawConfigParser(strict=False)
    try:
        files.read([Path(environment.get(each, usual)).expanduser() for each, usual in PROFILES.items()], "utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:  # its text may have keys
        raise PlaceError(f"a file of AWS's profiles is broken ({type(error).__name__}); repair it") from None
    name = asked or "default"
    found = {key: files[part][key] for part in (f"profile {name}", name) if part in files for key in files[part]}
    if found.keys() & ELSEWHERE or (asked and not found.keys() >= {*OF_PROFILES[:2]}):
        raise PlaceError(
            f"profile {name} of AWS has no keys of its own, or is not there; put its keys into the environment by "
            f'`eval "$(aws configure export-credentials --profile {name} --format env)"`'
        )
    told = {key for key in found for each in environment if each.endswith(key.removeprefix("aws").upper())}
    return {key: found[key] for key in OF_PROFILES if key in found.keys() - told}


def s3_place(address: str) -> ObjectPlace:
    """Return the place at ``s3://bucket/…``. Raises `UsageError` without a bucket and for parts such as ``..``."""
    bucket, *parts = ADDRESS.sub("", address, count=1).split("/")
    if not bucket or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"{address} is no address of a bucket's part; give s3://BUCKET/NAME")
    return ObjectPlace(address)


@dataclass(frozen=True)
class ObjectPlace:
    """The objects of a bucket whose keys begin with the path of the address.

    `check` is that of a fenced place. Such a place replaces an object only if the server still has
    the version that was there before the check. A new object is created without it, and what an earlier writer
    creates so is replaced by the later one. Deleting has no condition, so it is only as good as the check before.
    """

    address: str
    check: Callable[[], None] = field(default=unfenced, kw_only=True, compare=False, repr=False)
    at_once: ClassVar[int] = AT_ONCE

    def __str__(self) -> str:
        return self.address

    def free(self) -> int | None:
        """None: a bucket has no limit that is known."""
        return None

    @_reading
    def has(self, key: str) -> bool:
        """Tell whether there is an object under this key."""
        return self._about(key) is not None

    @_listing
    def names(self, prefix: str = "") -> list[str]:
        """Return the names directly under ``prefix/``, ascending. Takes one request for each thousand."""
        client, path = self._at(prefix)
        listing = obstore.list_with_delimiter(client, path)
        keys = [*listing["common_prefixes"], *(each["path"] for each in listing["objects"])]
        names = {key.rpartition("/")[2] for key in keys}
        return sorted(name for name in names if not name.endswith(PARTIAL))

    @_reading
    def read(self, key: str, most: int | None = None) -> memoryview | None:
        """Return the bytes of an object; None if there is none.

        Raises `StoreDamaged` for more than `most` bytes.
        """
        if (answer := _if_there(obstore.get, *self._at(key))) is None:
            return None
        if most is not None and answer.meta["size"] > most:
            raise StoreDamaged(f"{self}/{key} has {answer.meta['size']} bytes, where at most {most} belong")
        return memoryview(bytearray(answer.bytes()))

    @_reading
    def read_part(self, key: str, first: int, size: int) -> memoryview | None:
        """Return up to `size` bytes of an object from offset `first`; None if there is no object."""
        try:
            answer = _if_there(obstore.get, *self._at(key), options={"range": (first, first + size)})
            return None if answer is None else memoryview(bytearray(answer.bytes()))
        except BaseError:
            about = self._about(key)
            if about is None or first < about["size"]:
                raise
            return memoryview(b"")  # a server answers with an error for a range past the end

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each object by key. Takes one request for each thousand."""
        return {key: about["size"] for key, about in self.objects().items()}

    @_listing
    def objects(self) -> dict[str, Any]:
        """Return what the server says of each object, such as `size` and `e_tag`, by key in ascending order."""
        client, path = self._at("")
        start = len(path) + 1 if path else 0
        objects = [each for page in obstore.list(client, path) for each in page]
        return {each["path"][start:]: each for each in sorted(objects, key=lambda each: each["path"])}

    @_writing
    def write(self, key: str, *pieces: Piece, durable: bool = False) -> None:
        """Create or replace an object. It is durable once the server has accepted it, whatever `durable` says."""
        self.stream(key, pieces, durable)

    @_writing
    def stream(self, key: str, pieces: Iterable[Piece], durable: bool = False) -> None:
        """Create or replace an object. All pieces are joined in memory and sent in one request."""
        content = b"".join(pieces)
        if self.check is unfenced:
            obstore.put(*self._at(key), content, use_multipart=False)
            return
        while not self._put_if(key, content, "create"):
            about = self._about(key)
            self.check()
            if about and self._put_if(key, content, {"e_tag": about["e_tag"]}):
                self.check()
                return

    @_writing
    def create(self, key: str, *pieces: Piece, durable: bool = False) -> bool:
        """Create an object that must not exist yet; False if it does. The server checks it (If-None-Match).

        In a fenced place it counts only where `check` does not raise afterwards.
        """
        created = self._put_if(key, b"".join(pieces), "create")
        self.check()
        return created

    def _put_if(self, key: str, content: bytes, mode: Any) -> bool:
        """Write an object; False if the server has one (If-None-Match) or another version (If-Match) by now."""
        try:
            obstore.put(*self._at(key), content, use_multipart=False, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    @_deleting
    def delete(self, prefix: str) -> None:
        """Delete an object and all objects under ``prefix/``."""
        self.check()
        client, path = self._at(prefix)
        keys = [each["path"] for page in obstore.list(client, path) for each in page]
        with suppress(FileNotFoundError):
            obstore.delete(client, [*keys, path])

    @_deleting
    def delete_names(self, prefix: str, names: Sequence[str]) -> None:
        """Delete objects of these names directly under ``prefix/``. Takes one request for each thousand."""
        self.check()
        with suppress(FileNotFoundError):
            obstore.delete(self._at(prefix)[0], [self._at(f"{prefix}/{name}")[1] for name in names])

    @_writing
    def sweep(self) -> None:
        """Delete the marker of a killed maker. There are no half-written objects."""
        self.delete(MAKING)

    def sync(self) -> None:
        """Do nothing: whatever the server has accepted is durable."""

    def flush(self) -> None:
        """Do nothing: whatever the server has accepted is durable."""

    @_writing
    def make(self) -> None:
        """Raise `PlaceError` if nothing can be written here. A bucket needs no folders."""
        probe = f"{secrets.token_hex(8)}{PARTIAL}"
        self.write(probe)
        self.delete(probe)

    @contextmanager
    def aside(self) -> Iterator[ObjectPlace]:
        """A context with a temporary place in memory, whose contents are written here at the end.

        An object store cannot rename, so the process that creates the object `MAKING` makes the place, and what is
        at the top of the hierarchy is written last. If it is killed, another process deletes what it left and
        takes over after `PATIENCE`. Raises `PlaceTaken` if something is here, or while another process makes it.
        """
        name = secrets.token_hex(8)
        _memories[name] = MemoryStore()
        try:
            yield (aside := ObjectPlace(f"memory://{name}"))
            self._take(aside=aside)
        finally:
            del _memories[name]

    @_writing
    def _take(self, aside: ObjectPlace) -> None:
        """Copy all contents of the temporary place here, the top-level document last."""
        *keys, last = sorted(aside.sizes(), key=lambda key: (-key.count("/"), key))
        token = secrets.token_hex(8).encode()
        abandoned = self._claim(token)
        if self.names() if not abandoned else self.has(last):
            self.delete(MAKING)
            raise PlaceTaken(f"{self} exists already")
        for name in self.names():
            self.delete(name)

        def put(key: str) -> None:
            # An object that is already here comes from a maker that was suspended and went on: keep it.
            if not self.create(key, aside.read(key) or b""):
                raise PlaceTaken(f"{self} is being made by another process")

        together(self, put, keys)
        if bytes(self.read(MAKING) or b"") != token:
            raise PlaceTaken(f"{self} is being made by another process")
        put(last)
        self.delete(MAKING)

    def _claim(self, token: bytes) -> bool:
        """Mark this place as being made by the maker with this token.

        Gives whether a killed maker was taken over. Raises `PlaceTaken` if another maker may still be at work.
        """
        if self.create(MAKING, token):
            return False
        about = self._about(MAKING)
        busy = PlaceTaken(f"{self} is being made by another process, or one was killed; wait three minutes")
        if about is None or self._now() - about["last_modified"] < PATIENCE:
            raise busy
        if not self._put_if(MAKING, token, {"e_tag": about["e_tag"]}):
            raise busy
        return True

    def age(self, key: str) -> float | None:
        """Return how many seconds ago an object was written, by the server's clock; None if there is none."""
        about = self._about(key)
        return None if about is None else float((self._now() - about["last_modified"]).total_seconds())

    def fenced(self, check: Callable[[], None]) -> ObjectPlace:
        """Return these objects for a writer whose lease may be over: `check` raises an error then."""
        return replace(self, check=check)

    def _now(self) -> datetime:
        """Return the time now by the server's clock, read off an object written for it."""
        probe = f"{secrets.token_hex(8)}{PARTIAL}"
        self.write(probe)
        about = self._about(probe)
        self.delete(probe)
        assert about is not None
        now: datetime = about["last_modified"]
        return now

    def _about(self, key: str) -> Any:
        """Return the server's metadata of an object; None if there is no object."""
        return _if_there(obstore.head, *self._at(key))

    def _at(self, key: str) -> tuple[S3Store | MemoryStore, str]:
        client, prefix = client_of(self.address)
        return client, "/".join((*([prefix] if prefix else []), *parts_of(key, self)))


def _if_there(request: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Return the answer to a request for an object; None if there is no object, but an error without a bucket."""
    try:
        return request(*given, **named)
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise
        return None
