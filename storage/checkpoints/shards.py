"""Read a checkpoint that is split into shards: several files, and an index that names the file of each tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from storage.checkpoints.files import SUFFIXES, few, open_file
from storage.errors import CheckpointError
from storage.parsing import from_json
from storage.values.tensors import LazyTensors

INDEX = ".index.json"


LARGEST_INDEX = 1 << 26
"""The most bytes that an index may have, enough for some hundred thousand names."""


def is_index(path: Path) -> bool:
    """Whether a file's name is that of an index of shards, such as ``model.safetensors.index.json``."""
    return path.name.lower().endswith(tuple(f"{suffix}{INDEX}" for suffix in SUFFIXES))


def open_shards(path: Path) -> Mapping[str, torch.Tensor]:
    """The named tensors of all shards, each of its own shape, read one at a time when they are asked for.

    The index may come from anybody, so shards in another folder, and links, are refused. Raises `CheckpointError`.
    """
    places = _weight_map(path)
    shards = {name: open_file(_beside(path, name)) for name in sorted(set(places.values()))}
    for shard, tensors in shards.items():
        named = {name for name, place in places.items() if place == shard}
        if odd := sorted(named ^ set(tensors)):
            raise CheckpointError(f"{path} and {shard} do not agree on {few(odd)}; copy both again")
    return LazyTensors(tuple(places), lambda name: shards[places[name]][name])


def _weight_map(path: Path) -> dict[str, str]:
    if path.stat().st_size > LARGEST_INDEX:
        raise CheckpointError(f"{path} is too large for an index of shards; copy it again")
    try:
        document: Any = from_json(path.read_bytes())
        places = document["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no index of shards, a JSON object with a weight_map") from error
    if not isinstance(places, dict) or not places or not all(isinstance(place, str) for place in places.values()):
        raise CheckpointError(f"{path}: its weight_map does not say in which file each tensor is; copy it again")
    return places


def _beside(index: Path, shard: str) -> Path:
    path = index.with_name(shard) if _is_plain(shard) else None
    if path is None or path.suffix.lower() not in SUFFIXES:
        raise CheckpointError(f"{index} names the shard {shard!r}, no checkpoint beside it; copy it again")
    if path.is_symlink():
        raise CheckpointError(f"{path} is a link, which may lead anywhere; put the file itself in its place")
    if not path.is_file():
        raise CheckpointError(f"{index} names the shard {shard}, which is not beside it; copy all shards")
    return path


def _is_plain(name: str) -> bool:
    return name not in ("", "..") and name == Path(name).name and "\\" not in name and "\0" not in name
