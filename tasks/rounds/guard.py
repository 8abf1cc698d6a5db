"""Checks of what a map and an apply return.

An update that must not be averaged is refused, and the reason recorded. An unsound state ends the run.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from roundweave.storage.errors import RoundFailed, ShapeMismatch
from roundweave.storage.rounds.commits import metric_problem
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import Specs, Vectors, check_sizes, views
from roundweave.tasks.numerics.pieces import is_finite

NOTHING = Update({}, weight=0)
"""Replaces an update whose shape cannot be stored."""


def checked_update(
    layout: Layout,
    returned: Any,
    buffers: Vectors,
    carry: tuple[str, ...] = (),
    extras: tuple[str, ...] = (),
    observes: Specs = (),
) -> tuple[Update, str | None]:
    """Check the result of a map.

    Return the update as it can be stored, and why it is refused, None if it is sound.

    An update is refused in these cases:

    - Its vectors are misshapen, or its slots of `carry` or `extras` are not those that the map declares.
    - It does not have the tensors that the map `observes`.
    - It holds numbers that are not finite.
    - Its weight is no positive integer of 53 bits.
    - It reports a metric that is no number, or whose name cannot be stored.

    Numbers of `buffers`, vectors (element,) by dtype, that were not finite before the map may stay so.
    """
    if not isinstance(returned, Update):
        return NOTHING, f"the map returned {type(returned).__name__}, not an Update"
    for kind, declared in (("carry", carry), ("extras", extras), ("metrics", None)):
        if not isinstance(slots := getattr(returned, kind), Mapping):
            return NOTHING, f"{kind} is no mapping but of type {type(slots).__name__}"
        if declared is not None and sorted(slots) != sorted(declared):
            return NOTHING, f"{kind} has slots {sorted(slots)}, the map declares {sorted(declared)}"
    groups: dict[str, tuple[Specs, Vectors]] = {
        "direction": (layout.params, returned.direction),
        "buffers": (layout.buffers, returned.buffers),
        "observed": (observes, returned.observed),
        **{f"extras/{name}": (layout.params, vectors) for name, vectors in returned.extras.items()},
        **{f"carry/{slot}": (layout.params, vectors) for slot, vectors in returned.carry.items()},
    }
    for name, group in groups.items():
        if reason := misshapen(*group):
            return NOTHING, f"{name} is misshapen: {reason}"
    misnamed = next(filter(None, map(metric_problem, returned.metrics)), None) or no_number(returned.metrics)
    if misnamed:
        returned = replace(returned, metrics={})
    weight = _positive(returned.weight)
    if weight is None:
        return replace(returned, weight=0), f"weight {returned.weight!r} is no positive integer of 53 bits"
    before = {"buffers": buffers}
    reasons = (
        f"{name} of {bad}"
        for name, group in groups.items()
        if (bad := non_finite(*group, before=before.get(name, {})))
    )
    return replace(returned, weight=weight), misnamed or next(reasons, None)


def misshapen(specs: Specs, vectors: Vectors) -> str | None:
    """Return why vectors do not have the types and sizes of the specs; None if they do."""
    if not isinstance(vectors, Mapping) or not all(isinstance(v, torch.Tensor) for v in vectors.values()):
        return f"{type(vectors).__name__} is no mapping from dtypes to tensors"
    if sparse := [str(vector.layout) for vector in vectors.values() if vector.layout != torch.strided]:
        return f"tensors of layout {sparse} are no vectors"
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
    """Name the first tensor with a number that is not finite, and count such numbers; None if there is none.

    Numbers that are the same in `before`, vectors (element,) by dtype, are allowed: a causal mask holds -inf.
    """
    # One pass over each vector. Tensor names are looked up only after a find.
    if all(map(is_finite, vectors.values())):
        return None
    wrong = {dtype: _wrong(vector, (before or {}).get(dtype)) for dtype, vector in vectors.items()}
    for name, tensor in views(specs, wrong).items():
        bad = int(tensor.sum())
        if bad:
            return f"{name} has {bad} non-finite of {tensor.numel()} numbers"
    return None


def _wrong(vector: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """Return which numbers (element,) are not finite and have changed; bool (element,)."""
    wrong = ~torch.isfinite(vector)
    if before is None:
        return wrong
    return wrong & (vector != before) & ~(vector.isnan() & before.isnan())


def no_number(metrics: Mapping[str, Any]) -> str | None:
    """Name the first metric that is no number; None if all are."""
    for name, value in metrics.items():
        try:
            float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            return f"metric {name!r} is no number, but {type(value).__name__}"
    return None


def _positive(weight: Any) -> int | None:
    try:
        number = operator.index(weight)
    except TypeError:
        return None
    return number if 0 < number < 1 << 53 else None


def check_buffers(state: State, before: State, reduced: Update) -> None:
    """Raise `RoundFailed` if a new state has the buffers of the state before instead of the reduced update's."""
    if state.buffers is before.buffers and reduced.buffers and reduced.buffers is not before.buffers:
        raise RoundFailed(
            f"round {before.round + 1}: the apply left the buffers as they were; have it return "
            "replace(state, ..., buffers=update.buffers), or buffers=dict(state.buffers) if they are to stay"
        )


def check_state(layout: Layout, state: State, before: State) -> None:
    """Raise `RoundFailed` for a new state from which the next round could not begin.

    Such a state has another round, other memory slots than the apply's `init`, misshapen vectors, or new numbers
    that are not finite.
    """
    if state.round != before.round + 1:
        raise RoundFailed(
            f"round {before.round + 1}: the apply gave the state of round {state.round}; have it return "
            "replace(state, ..., round=state.round + 1)"
        )
    if state.memory.keys() != before.memory.keys():
        raise RoundFailed(
            f"round {state.round}: the apply's memory has slots {sorted(state.memory)}, its init "
            f"{sorted(before.memory)}; give both the same"
        )
    params, buffers = (layout.params, state.params), (layout.buffers, state.buffers)
    reason = misshapen(*params) or non_finite(*params)
    reason = reason or misshapen(*buffers) or non_finite(*buffers, before=before.buffers)
    for slot, vectors in state.memory.items():
        if not reason and (why := misshapen(layout.params, vectors) or non_finite(layout.params, vectors)):
            reason = f"memory {slot}: {why}"
    if reason:
        raise RoundFailed(
            f"round {before.round + 1}: the new state is unsound, {reason}. Rounds to {before.round} are kept; "
            "try a smaller lr or outer lr, or correct a reduce or apply of your own"
        )
