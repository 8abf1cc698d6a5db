"""Operations that sum, compare or normalise over axes."""

from __future__ import annotations

from typing import Any

from tasks.matching.tracing.axes import Axes, broadcast, new_axis, pin, unify
from tasks.matching.tracing.rules.registry import Result, Site, dimensions, rule


@rule("all amax amin any logsumexp max_values mean norm linalg_vector_norm nansum nanmean prod std sum var")
def _reduction(site: Site, self: Axes, dim: Any = None, keepdim: bool = False, **_: Any) -> Axes:
    return _reduced(site, self, dimensions(dim, len(self)), len(site.shape) == len(self))


def _reduced(site: Site, axes: Axes, dims: list[int], keepdim: bool) -> Axes:
    rest = [axis for d, axis in enumerate(axes) if d not in dims]
    site.contract([axes[d] for d in dims], rest)
    return [new_axis(1) if d in dims else axis for d, axis in enumerate(axes) if keepdim or d not in dims]


@rule("var_mean", "std_mean")
def _moments(site: Site, self: Axes, dim: Any = None, keepdim: bool = False, **_: Any) -> Result:
    reduced = _reduced(site, self, dimensions(dim, len(self)), keepdim)
    return reduced, reduced


@rule("max", "min", "median", "mode", "kthvalue")
def _extreme(site: Site, self: Axes, dim: int | None = None, keepdim: bool = False, **more: Any) -> Result:
    if "other" in more:
        return broadcast(self, more["other"])
    if dim is None:
        return _reduced(site, self, list(range(len(self))), keepdim=False)
    if 1 in site.used:
        pin(self[dim], f"{site.name} gives its indices")
    reduced = _reduced(site, self, dimensions(dim, len(self)), keepdim)
    return reduced, reduced


@rule("argmax", "argmin")
def _which(site: Site, self: Axes, dim: int | None = None, keepdim: bool = False, **_: Any) -> Axes:
    for d in dimensions(dim, len(self)):
        pin(self[d], f"{site.name} gives its indices")
    return _reduced(site, self, dimensions(dim, len(self)), keepdim)


@rule("histc")
def _histogram(site: Site, self: Axes, **_: Any) -> Axes:
    site.mix(self, range(len(self)), "it is counted")
    return [new_axis(site.shape[0], "it is counted")]


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax", "softmin")
def _softmax(site: Site, self: Axes, dim: int, **_: Any) -> Axes:
    _reduced(site, self, dimensions(dim, len(self)), keepdim=False)
    return self


@rule(
    *["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "diff", "sort", "argsort", "flip", "roll", "topk"]
)
def _ordered(site: Site, self: Axes, **more: Any) -> Result:
    """What depends on the order along some dimensions, and treats all others alike."""
    dims = dimensions(more.get("dims", more.get("dim", -1)), len(self))
    site.mix(self, dims, f"{site.name} depends on the order")
    for beside in (more.get("prepend"), more.get("append")):
        for d, axis in enumerate(beside or []):
            if d in dims:
                pin(axis, f"{site.name} depends on the order")
            else:
                unify(self[d], axis)
    ordered = [new_axis(site.shape[d], site.name) if d in dims else axis for d, axis in enumerate(self)]
    return ordered if len(site.shapes) == 1 else tuple(ordered for _ in site.shapes)
