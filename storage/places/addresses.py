"""Addresses: texts that say where something is stored, either a path or ``scheme://…``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from roundweave.storage.errors import UsageError

Where = str | os.PathLike[str]

# `Path` turns two slashes into one, so one slash is accepted. A single letter would be a Windows drive.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def scheme_of(where: Where) -> str:
    """The scheme of an address in lower case; empty for a path.

    >>> scheme_of("s3://bucket/runs"), scheme_of("runs")
    ('s3', '')
    """
    named = ADDRESS.match(os.fspath(where))
    return named[1].lower() if named else ""


def address_of(where: Where) -> str:
    """The normal form of an address: lower-case scheme, two slashes after it, and none at the end.

    >>> address_of("S3:/bucket/runs/"), address_of("runs/")
    ('s3://bucket/runs', 'runs')
    """
    text, scheme = os.fspath(where), scheme_of(where)
    return f"{scheme}://{ADDRESS.sub('', text, count=1).rstrip('/')}" if scheme else str(Path(text))


def join_address(where: Where, name: Where) -> str:
    """A name appended to an address. As when paths are joined, an absolute path or an address replaces it.

    >>> join_address("s3://bucket", "runs"), join_address("s3://bucket", "/runs"), join_address("runs", "s3://b")
    ('s3://bucket/runs', '/runs', 's3://b')
    """
    if scheme_of(name) or not scheme_of(where) or Path(name).is_absolute():
        return address_of(name if scheme_of(name) else Path(where, name))
    return f"{address_of(where)}/{os.fspath(name)}"


def above(where: Where) -> str:
    """The address of the folder that an address is in.

    >>> above("s3://bucket/runs/a.zarr"), above("runs/a.zarr")
    ('s3://bucket/runs', 'runs')
    """
    address = address_of(where)
    return address.rpartition("/")[0] if scheme_of(address) else str(Path(address).parent)


def last_name(where: Where) -> str:
    """The last part of an address.

    >>> last_name("s3://bucket/runs/a.zarr")
    'a.zarr'
    """
    return address_of(where).rpartition("/")[2] if scheme_of(where) else Path(where).name


def full_address(where: Where) -> str:
    """An address that means the same from any working folder: paths become absolute, with links resolved."""
    return address_of(where) if scheme_of(where) else str(Path(where).resolve())


def as_path(where: Where) -> Path:
    """The address as a path; raises `UsageError` where it has a scheme and so is not on a disk of this machine."""
    if scheme_of(where):
        raise UsageError(f"{address_of(where)} is not on a disk of this machine; give a path")
    return Path(where)


def file_path(where: Where, what: str, suffixes: Sequence[str], replace: bool = True) -> Path:
    """The path of a file to write; raises `UsageError` for another suffix or a missing folder.

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
        raise UsageError(f"{path} is there already; give another name, or --force to replace it")
    return path
