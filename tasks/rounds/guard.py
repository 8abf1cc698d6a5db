"""Nothing fails silently: an update that must not be averaged is refused, by name and with the reason."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from storage.errors import ShapeMismatch
from storage.rounds.commits import metric_problem
from storage.values.layout import Layout
from storage.values.state import Update
from storage.values.tensors import Specs, Vectors, check_sizes, views

NOTHING = Update({}, weight=0)
"""What is kept of an update that does not have the shape to be stored."""


LEFT_OUT = "left out when the round was reduced again"
"""What is recorded of a sound update of a partition that was not to take part."""


def checked(
    layout: Layout, found: Any, buffers: Vectors, carry: tuple[str, ...] = (), extras: tuple[str, ...] = ()
) -> tuple[Update, str | None]:
    """What a map returned as it can be kept, and why it must be refused (None if it is sound).

    Refused are those that are misshapen, have other slots than the map declares, hold non-finite numbers (but for
    those of the `buffers`, (element,) by dtype, that the map was given), or have no positive integer weight, or
    report a metric under a name that cannot be stored.
    """
    if not isinstance(found, Update):
        return NOTHING, f"the map returned {type(found).__name__}, not an Update"
    for kind, slots, declared in (("carry", found.carry, carry), ("extras", found.extras, extras)):
        if sorted(slots) != sorted(declared):
            return NOTHING, f"{kind} has slots {sorted(slots)}, the map declares {sorted(declared)}"
    groups: dict[str, tuple[Specs, Vectors]] = {
        "direction": (layout.params, found.direction),
        "buffers": (layout.buffers, found.buffers),
        **{f"extras/{name}": (layout.params, vectors) for name, vectors in found.extras.items()},
        **{f"carry/{slot}": (layout.params, vectors) for slot, vectors in found.carry.items()},
    }
    for name, group in groups.items():
        if reason := misshapen(*group):
            return NOTHING, f"{name} is misshapen: {reason}"
    misnamed = next(filter(None, map(metric_problem, found.metrics)), None)
    if misnamed:
        found = replace(found, metrics={})
    weight = _positive(found.weight)
    if weight is None:
        return replace(found, weight=0), f"weight {found.weight!r} is no positive integer"
    before = {"buffers": buffers}
    reasons = (
        f"{name} of {bad}"
        for name, group in groups.items()
        if (bad := non_finite(*group, before=before.get(name, {})))
    )
    return replace(found, weight=weight), misnamed or next(reasons, None)


def misshapen(specs: Specs, vectors: Vectors) -> str | None:
    """In what vectors do not have the types and sizes of the specs, None if they have."""
    if not isinstance(vectors, Mapping) or not all(isinstance(v, torch.Tensor) for v in vectors.values()):
        return f"{type(vectors).__name__} is no mapping from dtypes to tensors"
    try:
        check_sizes(specs, vectors)
    except ShapeMismatch as error:
        return str(error)
    if any(vector.ndim != 1 for vector in vectors.values()):
        return f"tensors of shapes {[tuple(vector.shape) for vector in vectors.values()]} are no vectors"
    if any(vector.dtype != getattr(torch, name) for name, vector in vectors.items()):
        return f"{[str(vector.dtype) for vector in vectors.values()]} under {list(vectors)}"
    return None


def non_finite(specs: Specs, vectors: Vectors, before: Vectors | None = None) -> str | None:
    """The first tensor with a number that is not finite, None if there is none.

    A number that is as it was `before`, (element,) by dtype, may be: a causal mask holds -inf.
    """
    # One pass over each vector; names are looked for only where it finds something.
    if all(map(_is_finite, vectors.values())):
        return None
    wrong = {dtype: _wrong(vector, (before or {}).get(dtype)) for dtype, vector in vectors.items()}
    for name, tensor in views(specs, wrong).items():
        bad = int(tensor.sum())
        if bad:
            return f"{name} has {bad} non-finite of {tensor.numel()} numbers"
    return None


def _is_finite(vector: torch.Tensor) -> bool:
    """Whether all numbers (element,) are finite: where their sum is, which takes a tenth of the time, they are."""
    return bool(vector.sum().isfinite()) or bool(vector.isfinite().all())


def _wrong(vector: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """Which numbers (element,) are not finite, and new."""
    wrong = ~torch.isfinite(vector)
    if before is None:
        return wrong
    return wrong & (vector != before) & ~(vector.isnan() & before.isnan())


def _positive(weight: Any) -> int | None:
    try:
        number = operator.index(weight)
    except TypeError:
        return None
    return number if number > 0 else None
