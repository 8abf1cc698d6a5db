"""Checks the names, dtypes and shapes of a schema when a store is opened or created.

A store may come from anybody. So may the names of a module's tensors, which become paths.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from roundweave.storage.hierarchy.schema import SHARD_PARTITIONS, Schema
from roundweave.storage.hierarchy.zarr_format import NAME, parents
from roundweave.storage.values.tensors import RAW, vector_sizes

LONGEST = 255
"""The most bytes of a file's name on common file systems."""


AXES = 60
"""The most axes of a tensor: numpy allows 64 in all, and rounds and partitions need two."""


MOST = 1 << 58
"""The most elements of a tensor. The bytes of a larger one would overflow the size of a file."""


def checked_schema(value: Any) -> Schema:
    """Return the schema of a JSON value. Raises `ValueError` if no run can have it.

    Reasons are names that cannot be paths or that clash, and impossible dtypes, shapes and numbers of partitions.
    """
    schema = Schema.from_json(value)
    layout = schema.layout
    for spec in (*layout.params, *layout.buffers, *layout.frozen, *schema.matches):
        stored = RAW.get(spec.dtype, spec.dtype)
        if stored not in np.sctypeDict or np.dtype(stored).name != stored or np.dtype(stored).kind not in "biufc":
            raise ValueError(f"{_quoted(spec.name)} has the type {_quoted(spec.dtype)}, which is not of numbers")
        if len(spec.shape) > AXES or min(spec.shape, default=0) < 0 or math.prod(spec.shape) > MOST:
            raise ValueError(f"{_quoted(spec.name)} has the shape {_quoted(spec.shape)}, which no tensor has")
    if schema.shard > SHARD_PARTITIONS:
        raise ValueError(f"{schema.shard} partitions share a file, which would be too large")
    _check_paths(schema)
    names = {spec.name for spec in (*layout.params, *layout.buffers, *layout.frozen)}
    for _, name in layout.aliases:
        if name not in names:
            raise ValueError(f"a tensor is tied to {_quoted(name)}, which is no tensor of the network")
    return schema


def _check_paths(schema: Schema) -> None:
    """Raise `ValueError` if the arrays of a schema cannot lie at their paths.

    Each path must stay inside the run. No array may have the path of another array or lie inside it.
    """
    paths = schema.arrays(1).keys()
    if len(paths) < _count(schema):
        raise ValueError("two tensors of one name would lie at one place")
    for path in paths:
        if not all(map(_is_part, path.split("/"))):
            raise ValueError(f"{_quoted(path)} is no path of names with at most {LONGEST} bytes")
        if any(parent in paths for parent in parents(path)):
            raise ValueError(f"{_quoted(path)} would lie within another tensor")


def _count(schema: Schema) -> int:
    """Return the number of arrays of a schema. A dict by path has fewer if two paths are equal."""
    layout = schema.layout
    tensors = len(layout.params) * (1 + len(schema.memory)) + len(layout.buffers) + len(layout.frozen)
    params, buffers, observed = (len(vector_sizes(s)) for s in (layout.params, layout.buffers, schema.observed))
    vectors = params * (1 + len(schema.extras) + len(schema.carry)) + buffers + observed
    return tensors + vectors + 2 * len(schema.matches) + 3


def _is_part(name: str) -> bool:
    """Tell whether a folder can have this name: it must be printable, not too long, and not ``zarr.json``."""
    if name in ("", ".", "..", NAME) or not name.isprintable():
        return False
    return len(name.encode(errors="surrogatepass")) <= LONGEST


def _quoted(value: object) -> str:
    return repr(value)[:120]
