"""Check the names, dtypes and shapes of a schema when a store is opened or created.

A store may come from anybody, and so may the names of a module's tensors, which become paths.
"""

from __future__ import annotations

import math

import numpy as np

from storage.hierarchy.documents import NAME
from storage.hierarchy.schema import Schema
from storage.values.tensors import RAW, TensorSpec, sizes

LONGEST = 255
"""The most bytes of a file's name on common file systems."""


AXES = 60
"""The most axes of a tensor: numpy allows 64 in all, and rounds and partitions need two."""


MOST = 1 << 58
"""The most elements of a tensor. The bytes of a larger one would overflow the size of a file."""


def schema_problem(schema: Schema) -> str | None:
    """Why no run can have this schema; None where one can.

    Reasons are names that cannot be paths or that clash, and impossible dtypes, shapes and numbers of partitions.
    """
    layout = schema.layout
    if not _is_number(schema.partitions, 1):
        return f"{_quoted(schema.partitions)} is no number of partitions"
    for spec in (*layout.params, *layout.buffers, *layout.frozen, *schema.matches):
        if problem := _spec_problem(spec):
            return problem
    slots = (*schema.memory, *schema.carry, *schema.extras)
    for name in (*slots, *(name for alias in layout.aliases for name in alias)):
        if not isinstance(name, str):
            return f"{_quoted(name)} is no name"
    return _path_problem(schema) or _alias_problem(schema)


def _spec_problem(spec: TensorSpec) -> str | None:
    if not isinstance(spec.name, str) or not isinstance(spec.dtype, str):
        return f"{_quoted(spec.name)} of type {_quoted(spec.dtype)} is no tensor"
    stored = RAW.get(spec.dtype, spec.dtype)
    if stored not in np.sctypeDict or np.dtype(stored).name != stored or np.dtype(stored).kind not in "biufc":
        return f"{_quoted(spec.name)} has the type {_quoted(spec.dtype)}, which is none of numbers"
    sizes_known = len(spec.shape) <= AXES and all(_is_number(size, 0) for size in spec.shape)
    if not sizes_known or math.prod(spec.shape) > MOST:
        return f"{_quoted(spec.name)} has the shape {_quoted(spec.shape)}, which no tensor has"
    return None


def _path_problem(schema: Schema) -> str | None:
    """Why the arrays of a schema cannot lie at their paths; None where they can.

    Each path must stay inside the run, and no array may have the path of another one or lie inside of it.
    """
    paths = schema.arrays(1).keys()
    if len(paths) < _count(schema):
        return "two tensors of one name would lie at one place"
    for path in paths:
        parts = path.split("/")
        if not all(map(_is_part, parts)):
            return f"{_quoted(path)} is no path of names with at most {LONGEST} bytes"
        if any("/".join(parts[:depth]) in paths for depth in range(1, len(parts))):
            return f"{_quoted(path)} would lie within another tensor"
    return None


def _count(schema: Schema) -> int:
    """How many arrays the schema means to have. A dict by path has fewer where two paths are equal."""
    layout = schema.layout
    tensors = len(layout.params) * (1 + len(schema.memory)) + len(layout.buffers) + len(layout.frozen)
    vectors = len(sizes(layout.params)) * (1 + len(schema.extras) + len(schema.carry)) + len(sizes(layout.buffers))
    return tensors + vectors + 2 * len(schema.matches) + len(schema.numbers(1))


def _is_part(name: str) -> bool:
    """Whether a folder can have this name: it must be printable, not too long, and not ``zarr.json``."""
    if name in ("", ".", "..", NAME) or not name.isprintable():
        return False
    return len(name.encode(errors="surrogatepass")) <= LONGEST


def _alias_problem(schema: Schema) -> str | None:
    layout = schema.layout
    names = {spec.name for spec in (*layout.params, *layout.buffers, *layout.frozen)}
    unknown = next((name for _, name in layout.aliases if name not in names), None)
    return None if unknown is None else f"a tensor is tied to {_quoted(unknown)}, which there is not"


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _quoted(value: object) -> str:
    return repr(value)[:120]
