"""Files of Gram matrices, which say of which network they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.opening import open_checkpoint
from roundweave.storage.values.digests import tensor_digests
from roundweave.storage.values.hashing import json_digest

NETWORK = "roundweave.network"
"""The key of the metadata that has the digest of the network whose inputs were multiplied."""


def network_digest(state: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of a network's named tensors, of which one is in memory at a time."""
    return json_digest(tensor_digests(state))


def write_grams(place: str, grams: Mapping[str, torch.Tensor], network: str) -> None:
    """Create or replace a ``.safetensors`` file of a network's Gram matrices; `network` is its digest."""
    if not grams:
        raise UsageError("the network has no linear or convolutional layer that a solve can reach")
    write_checkpoint(place, grams, {NETWORK: network})


def read_grams(places: Sequence[str], networks: Sequence[str]) -> list[Mapping[str, torch.Tensor]]:
    """Return the Gram matrices of each network, in the order of the networks' digests.

    The files may be in any other.

    Raises `CheckpointError` for a file that cannot be read, and `UsageError` for one of another network.
    """
    files = {_network(place): place for place in places}
    for digest, place in files.items():
        if digest not in networks:
            raise UsageError(f"{place} has no Gram matrices of these networks; make it with one of them")
    for number, digest in enumerate(networks):
        if digest not in files:
            raise UsageError(f"no file has the Gram matrices of network {number}; make one by `roundweave gram`")
    return [open_checkpoint(files[digest]) for digest in networks]


def _network(place: str) -> str:
    """Return the digest of the network of a file; empty if it names none."""
    open_checkpoint(place)  # checks that it is one
    if Path(place).suffix.lower() != ".safetensors":
        return ""
    with safe_open(place, "pt") as file:
        named: Mapping[str, str] = file.metadata() or {}
    return named.get(NETWORK, "")
