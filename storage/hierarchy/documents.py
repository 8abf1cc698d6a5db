"""The documents that describe groups and arrays, ``zarr.json``, as zarr's format 3 has them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from storage.hierarchy.schema import ArraySpec
from storage.parsing import MOST_ROUNDS, from_json
from storage.places.base import Place

NAME = "zarr.json"


LARGEST = 1 << 27
"""Bytes of a document; a network of a million tensors has one of half as many."""


def read_document(place: Place, path: str = "") -> dict[str, Any]:
    """The document of a group or an array; raises `KeyError` where there is none, `ValueError` for no JSON."""
    content = place.read(_key(path), most=LARGEST)
    if content is None:
        raise KeyError(path)
    value: dict[str, Any] = from_json(bytes(content))
    return value


def told_rows(place: Place, path: str) -> int | None:
    """How many rows the document of an array tells of; None where it is missing or tells of no run's."""
    try:
        rows = read_document(place, path)["shape"][0]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return rows if type(rows) is int and 0 < rows <= MOST_ROUNDS + 1 else None


def create_root(place: Place, attributes: Mapping[str, Any]) -> None:
    """Describe the root by its attributes."""
    place.create(_key(""), root_document(attributes))


def root_document(attributes: Mapping[str, Any]) -> bytes:
    """The document of the root with these attributes."""
    return _bytes({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def replace_documents(place: Place, specs: Iterable[ArraySpec], fsync: bool = False) -> None:
    """Describe arrays and their groups anew where they are described in another way, as when they get longer."""
    for key, content in documents(specs).items():
        if (place.read(key) or b"") != memoryview(content):
            place.write(key, content, durable=fsync)


def documents(specs: Iterable[ArraySpec]) -> dict[str, bytes]:
    """Documents by key, those of groups before those of arrays, which are in the order of the specs."""
    specs = list(specs)
    groups = sorted({parent for spec in specs for parent in _parents(spec.path)})
    arrays = {_key(spec.path): _bytes(spec.metadata()) for spec in specs}
    return dict.fromkeys(map(_key, groups), root_document({})) | arrays


def _bytes(metadata: Mapping[str, Any]) -> bytes:
    return json.dumps(metadata, indent=2).encode()


def _key(path: str) -> str:
    return f"{path}/{NAME}" if path else NAME


def _parents(path: str) -> list[str]:
    """The groups that an array is in, but the root."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]
