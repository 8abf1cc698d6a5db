"""Normalisation, pooling, resizing, gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.matching.tracing.axes import Axes, Axis, broadcast, cut, factor, length, new_axes, unify
from tasks.matching.tracing.rules.registry import Result, Site, rule


@rule("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")
def _batch_norm(site: Site, input: Axes, **more: Any) -> Result:
    _unify_vectors(input[1], more)
    if more.get("running_mean") is None:
        site.contract([input[0], *input[2:]], [input[1]])
    if len(site.shapes) == 1:
        return input
    return input, *([input[1]] if shape[0] else None for shape in site.shapes[1:])


def _unify_vectors(channels: Axis, arguments: Mapping[str, Any]) -> None:
    """Scales, shifts and statistics have a number for each channel."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        if arguments.get(name) is not None:
            unify(channels, arguments[name][0])


@rule("instance_norm")
def _instance_norm(site: Site, input: Axes, **more: Any) -> Axes:
    _unify_vectors(input[1], more)
    site.contract(input[2:], input[:2])
    return input


@rule("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def _layer_norm(site: Site, input: Axes, normalized_shape: list[int], **more: Any) -> Result:
    axes = input[-len(normalized_shape) :]
    batch = input[: -len(normalized_shape)]
    site.contract(list(axes), batch)
    for name in ("weight", "bias"):
        if more.get(name) is not None:
            for axis, own in zip(axes, more[name], strict=True):
                unify(axis, own)
    return (
        input if len(site.shapes) == 1 else (input, *(batch + new_axes([1] * len(axes)) for _ in site.shapes[1:]))
    )


@rule("group_norm")
def _group_norm(site: Site, input: Axes, num_groups: int, **more: Any) -> Axes:
    channels = input[1]
    group, inner = factor(channels, num_groups, length(channels) // num_groups)
    site.contract([inner, *input[2:]], [input[0], group])
    _unify_vectors(channels, more)
    return input


@rule("_weight_norm")
def _weight_norm(site: Site, v: Axes, g: Axes, **_: Any) -> Axes:
    """Slices of a weight divided by their norms and scaled; they lie along the axis that the scales have."""
    kept = [d for d, own in enumerate(g) if length(own) > 1]
    site.contract([axis for d, axis in enumerate(v) if d not in kept], [v[d] for d in kept])
    return broadcast(v, g) if g else v


@rule("cosine_similarity")
def _cosine_similarity(site: Site, x1: Axes, x2: Axes, dim: int = 1, **_: Any) -> Axes:
    rest = broadcast(x1, x2)
    axis = rest.pop(dim)
    site.contract([axis], rest)
    return rest


POOLING = """
avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices
max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
lp_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""


@rule(POOLING)
def _pooled(site: Site, **arguments: Any) -> Result:
    axes: Axes = arguments.get("self") or arguments["input"]
    spatial = next(int(c) for c in reversed(site.name) if c.isdigit())
    images = site.mix(axes, range(len(axes) - spatial, len(axes)), "spatial")
    pooled = [*images, *new_axes(site.shape[-spatial:], "spatial")]
    return pooled if len(site.shapes) == 1 else (pooled, pooled)


@rule("glu")
def _glu(site: Site, self: Axes, dim: int = -1) -> Axes:
    half = length(self[dim]) // 2
    values, gates = cut(self[dim], [half, half])
    unify(values, gates)
    gated = list(self)
    gated[dim] = values
    return gated
