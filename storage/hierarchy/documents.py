"""Write and read the ``zarr.json`` documents that describe groups and arrays in zarr's format 3."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from roundweave.storage.hierarchy.schema import ArraySpec
from roundweave.storage.parsing import MOST_ROUNDS, from_json
from roundweave.storage.places.base import Place

NAME = "zarr.json"


LARGEST = 1 << 27
"""The most bytes of a document. That of a network of a million tensors has half as many."""


def read_document(place: Place, path: str = "") -> dict[str, Any]:
    """The document of the group or array at a path; the root's path is empty.

    Raises `KeyError` where there is none and `ValueError` where it is not JSON.
    """
    content = place.read(_key(path), most=LARGEST)
    if content is None:
        raise KeyError(path)
    value: dict[str, Any] = from_json(bytes(content))
    return value


def described_rows(place: Place, path: str) -> int | None:
    """The length of the first axis of an array, according to its document.

    None where the document is missing or damaged, or where no run can have so many rows.
    """
    try:
        rows = read_document(place, path)["shape"][0]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return rows if type(rows) is int and 0 < rows <= MOST_ROUNDS + 1 else None


def root_document(attributes: Mapping[str, Any]) -> bytes:
    """The bytes of the root group's document with these attributes."""
    return _bytes({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def replace_documents(place: Place, specs: Iterable[ArraySpec]) -> None:
    """Write the documents of arrays and their groups where they differ from what is stored.

    They differ, for example, after a run got more rounds.
    """
    for key, content in documents(specs).items():
        if (place.read(key) or b"") != memoryview(content):
            place.write(key, content)


def documents(specs: Iterable[ArraySpec]) -> dict[str, bytes]:
    """The documents of arrays and of the groups that they are in, by key: first groups, then arrays in order."""
    specs = list(specs)
    groups = sorted({parent for spec in specs for parent in _parents(spec.path)})
    arrays = {_key(spec.path): _bytes(spec.metadata()) for spec in specs}
    return dict.fromkeys(map(_key, groups), root_document({})) | arrays


def _bytes(metadata: Mapping[str, Any]) -> bytes:
    return json.dumps(metadata, indent=2).encode()


def _key(path: str) -> str:
    return f"{path}/{NAME}" if path else NAME


def _parents(path: str) -> list[str]:
    """The paths of the groups that an array is in, from the outermost one, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]
