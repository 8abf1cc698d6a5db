"""The documents that describe groups and arrays, ``zarr.json``, as zarr itself would write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.group import GroupMetadata
from zarr.core.metadata import ArrayV3Metadata

from storage.parsing import from_json
from storage.places.base import Place
from storage.rounds.schema import ArraySpec

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


def create_documents(
    place: Place, specs: Iterable[ArraySpec], attributes: Mapping[str, Any] | None = None
) -> None:
    """Describe arrays, and the groups that they are in, where they are not; `attributes` are those of the root."""
    specs = list(specs)
    for path in sorted({parent for spec in specs for parent in _parents(spec.path)}):
        place.create(_key(path), _bytes(GroupMetadata(zarr_format=3)))
    for spec in specs:
        place.create(_key(spec.path), _array(spec))
    if attributes is not None:
        place.create(_key(""), _bytes(GroupMetadata(zarr_format=3, attributes=dict(attributes))))


def replace_document(place: Place, spec: ArraySpec) -> None:
    """Describe an array anew, as when it gets longer."""
    place.write(_key(spec.path), _array(spec))


def _array(spec: ArraySpec) -> bytes:
    return _bytes(ArrayV3Metadata.from_dict(spec.metadata()))


def _bytes(metadata: GroupMetadata | ArrayV3Metadata) -> bytes:
    return metadata.to_buffer_dict(default_buffer_prototype())[NAME].to_bytes()


def _key(path: str) -> str:
    return f"{path}/{NAME}" if path else NAME


def _parents(path: str) -> list[str]:
    """The groups that an array is in, but the root."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]
