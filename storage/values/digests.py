"""BLAKE3 digests of tensors, states and texts. Two tensors have "the same bits" if their digests are equal.

The digest of a tensor covers its name, logical dtype, shape and its elements as little-endian bytes in C order. It
is computed from memory, before anything is written. All digests are texts of 64 hexadecimal digits. One thread
computes them, because the other cores train meanwhile. It lets the other threads of its process run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from blake3 import blake3

from roundweave.storage.errors import PlaceError, StoreError
from roundweave.storage.parsing import parse
from roundweave.storage.places.base import Place
from roundweave.storage.values.hashing import json_digest
from roundweave.storage.values.state import OBSERVED, Layout, Match, Update
from roundweave.storage.values.tensors import Specs, Vectors, by_path, dtype_name, little_bytes, to_numpy, views

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Form = TypeVar("Form", bound="DataclassInstance")


def tensor_digest(name: str, tensor: torch.Tensor) -> str:
    """Return the digest of a tensor of any shape under its name."""
    digest = TensorDigest(name, dtype_name(tensor.dtype), tensor.shape)
    digest.update(to_numpy(tensor))
    return digest.hexdigest()


class TensorDigest:
    """Computes the digest of a tensor whose elements are given in parts, in C order."""

    def __init__(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        self._total = blake3(json.dumps([name, dtype, list(shape)]).encode())

    def update(self, array: np.ndarray) -> None:
        """Add the next elements, an array of any shape."""
        self._total.update(little_bytes(array).data)

    def taking(self, arrays: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Pass arrays through unchanged, and add the elements of each to the digest."""
        for array in arrays:
            self.update(array)
            yield array

    def hexdigest(self) -> str:
        """Return the digest of the elements that were added."""
        return self._total.hexdigest()


def tensor_digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the digest of each tensor by name, sorted by name. Tensors may have any shapes."""
    return {name: tensor_digest(name, tensors[name]) for name in sorted(tensors)}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Return the names whose values, such as digests, differ between two mappings, or that only one has.

    Names of the first mapping come first.
    """
    return (name for name in {**one, **other} if one.get(name) != other.get(name))


def state_digest(digests: Mapping[str, str], round: int) -> str:
    """Return the digest of a state, from those of its tensors (see `tensor_digests`) and its round number."""
    return json_digest([round, sorted(digests.items())])


def vectors_digest(groups: Mapping[str, Vectors]) -> str:
    """Return the digest of tensors of any shapes by group and name, such as an update's vectors (element,)."""
    digests = {
        group: {name: tensor_digest(f"{group}/{name}", vector) for name, vector in vectors.items()}
        for group, vectors in groups.items()
    }
    return grouped_digest(digests)


def grouped_digest(digests: Mapping[str, Mapping[str, str]]) -> str:
    """Return the digest that stands for several tensors, from the digest of each by group and name."""
    return json_digest([named[name] for _, named in sorted(digests.items()) for name in sorted(named)])


def update_groups(update: Update) -> dict[str, Vectors]:
    """Return the vectors of an update, (element,) each, by the path of their group in the store and dtype."""
    return {
        "updates": update.direction,
        "updates/buffers": update.buffers,
        **{f"updates/extras/{name}": vectors for name, vectors in update.extras.items()},
        **{f"carry/{slot}": vectors for slot, vectors in update.carry.items()},
        **({OBSERVED: update.observed} if update.observed else {}),
    }


def update_vectors(update: Update) -> dict[str, torch.Tensor]:
    """Return the vectors of an update, (element,) each, by their path in the store."""
    return by_path(update_groups(update))


def update_digest(update: Update) -> str:
    """Return the digest of all vectors of an update. Its weight and metrics are not covered."""
    return vectors_digest(update_groups(update))


def update_tensors(update: Update, layout: Layout, observed: Specs = ()) -> dict[str, torch.Tensor]:
    """Return the tensors of an update, each of its own shape, by group and name, such as ``updates/fc1.weight``.

    `observed` has the specs of what the map observed.
    """
    specs = {"updates/buffers": layout.buffers, OBSERVED: observed}
    groups = {group: vectors for group, vectors in update_groups(update).items() if vectors}
    return by_path({group: views(specs.get(group, layout.params), groups[group]) for group in groups})


def match_tensors(match: Match) -> dict[str, torch.Tensor]:
    """Return the tensors of a match by their path in the store: (unit,) each, or (unit, unit) for a mixture."""
    return by_path({"permutations": match.permutation, "similarities": match.similarity})


def match_digest(match: Match) -> str:
    """Return the digest of all permutations and similarities of a match."""
    return vectors_digest({"": match_tensors(match)})


def sealed(document: DataclassInstance) -> bytes:
    """Return the members of a document as a JSON object, with their digest as its last member."""
    members = asdict(document)
    return json.dumps(members | {"digest": json_digest(members)}).encode()


def unsealed(form: type[Form], content: bytes | memoryview) -> Form:
    """Return the document behind the content of `sealed`. Raises `ValueError` for any other content."""
    document = parse(form, bytes(content))
    if bytes(content) != sealed(document):
        raise ValueError("it is not what was written")
    return document


def read_sealed(form: type[Form], place: Place, key: str) -> Form | None:
    """Return the sealed document at a key; None if there is none or it is damaged."""
    try:
        content = place.read(key, most=LARGEST_SEALED)
        return None if content is None else unsealed(form, content)
    except PlaceError:
        raise
    except (ValueError, StoreError):
        return None


LARGEST_SEALED = 1 << 20
"""The most bytes of a sealed document. The text of a failure in it may be long."""


NOTHING_KEPT = update_digest(Update({}))
"""The digest in the record of an update with the wrong shape. Its vectors are not stored."""
